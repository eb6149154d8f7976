//! The one place that finds out which cgroup hierarchies a host has.
//!
//! The mode comes from `statfs` and mountinfo, never from the kernel's version
//! or the presence of systemd. Mount points are those of the process that will
//! write, so a container without a cgroup namespace (where the root in
//! mountinfo is not `/`) works like a host.

use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use crate::error::{Error, Result};
use crate::file;
use crate::membership;

/// How cgroups are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Version 1 hierarchies only.
    Legacy,
    /// Version 1 hierarchies, and beside them a version 2 one, mostly without
    /// controllers. The rules of version 1 hold for every controller there.
    Hybrid,
    /// Version 2 only.
    Unified,
}

/// The version of one hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A version 1 hierarchy: some controllers, or a name.
    V1,
    /// The version 2 hierarchy.
    V2,
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Version 1: its controllers, or `name=…`. Version 2: the controllers
    /// available at its mount.
    pub controllers: Vec<String>,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Which of its cgroups the mount shows (field 4 of mountinfo).
    pub root: PathBuf,
    /// Its version.
    pub version: Version,
    /// Mounted with `noprefix`: `cpuset.cpus` is called `cpus`.
    pub noprefix: bool,
}

impl Hierarchy {
    /// The directory of the cgroup at `path`, which is absolute and clean.
    pub(crate) fn directory(&self, path: &Path) -> PathBuf {
        self.mount.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether it has this controller.
    #[must_use]
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|c| c == controller)
    }

    /// The hierarchy's field in `/proc/<pid>/cgroup`.
    fn is_line(&self, hierarchy: &str) -> bool {
        match self.version {
            Version::V2 => hierarchy.is_empty(),
            Version::V1 => hierarchy.split(',').any(|c| self.has(c)),
        }
    }

    /// The cgroup at `found` (as `/proc/<pid>/cgroup` has it) as a path below
    /// the mount. `None` if the mount does not show it.
    pub(crate) fn below_mount(&self, found: &Path) -> Option<PathBuf> {
        found
            .strip_prefix(&self.root)
            .ok()
            .map(|rest| Path::new("/").join(rest))
    }
}

/// What a host has of cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    mode: Mode,
    hierarchies: Vec<Hierarchy>,
    proc: PathBuf,
    systemd: bool,
}

impl Host {
    /// Looks at the real `/proc` and `/sys/fs/cgroup`.
    ///
    /// # Errors
    /// mountinfo cannot be read, or no hierarchy is mounted.
    pub fn detect() -> Result<Self> {
        let host = Self::at(Path::new("/sys/fs/cgroup"), Path::new("/proc"))?;
        Ok(host.with_systemd(Path::new("/run/systemd/system").is_dir()))
    }

    /// Looks at `root` for `/sys/fs/cgroup` and `proc` for `/proc`. Such a host
    /// is taken to be without systemd; see [`Host::with_systemd`].
    ///
    /// # Errors
    /// As [`Host::detect`].
    pub fn at(root: &Path, proc: &Path) -> Result<Self> {
        let path = proc.join("self/mountinfo");
        let mut mounts = parse_mountinfo(&file::read(&path)?);
        // A hierarchy may be seen at several places (bind mounts into
        // containers): those below the root come first, shorter ones before,
        // and of several at one place the last, which hides the others.
        mounts.reverse();
        mounts.sort_by_key(|m| (!m.mount.starts_with(root), m.mount.as_os_str().len()));
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for mount in mounts {
            if !hierarchies
                .iter()
                .any(|h| h.version == mount.version && h.controllers == mount.controllers)
            {
                hierarchies.push(mount);
            }
        }

        let unified_root = statfs(root).is_ok_and(|s| s.filesystem_type() == CGROUP2_SUPER_MAGIC)
            || hierarchies
                .iter()
                .any(|h| h.version == Version::V2 && h.mount == root);
        let has = |version| hierarchies.iter().any(|h| h.version == version);
        let mode = match (has(Version::V1), has(Version::V2)) {
            (false, false) => return Err(Error::NoHierarchy { root: root.into() }),
            (_, true) if unified_root => Mode::Unified,
            (false, true) => Mode::Unified,
            (true, true) => Mode::Hybrid,
            (true, false) => Mode::Legacy,
        };
        if mode == Mode::Unified {
            hierarchies.retain(|h| h.version == Version::V2);
        }
        for hierarchy in hierarchies.iter_mut().filter(|h| h.version == Version::V2) {
            hierarchy.controllers =
                file::read_if_there(&hierarchy.mount.join("cgroup.controllers"))
                    .unwrap_or_default()
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect();
        }
        Ok(Self {
            mode,
            hierarchies,
            proc: proc.into(),
            systemd: false,
        })
    }

    /// The same host, with or without a running systemd.
    #[must_use]
    pub fn with_systemd(self, systemd: bool) -> Self {
        Self { systemd, ..self }
    }

    /// How cgroups are mounted.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether systemd is the manager of this host: `/run/systemd/system` is a
    /// directory (sd_booted(3)).
    #[must_use]
    pub fn systemd_running(&self) -> bool {
        self.systemd
    }

    /// The mounted hierarchies; on a [`Mode::Unified`] host exactly one.
    #[must_use]
    pub fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// The calling process's own cgroup as a path below the mount, the base of
    /// relative paths.
    ///
    /// Version 1 has one for each hierarchy. One path serves all here: that of
    /// `name=systemd`'s, else memory's, else the first hierarchy.
    ///
    /// # Errors
    /// `/proc/self/cgroup` cannot be read or does not name a mounted hierarchy.
    pub fn own_cgroup(&self) -> Result<PathBuf> {
        let path = self.proc.join("self/cgroup");
        let lines = membership::parse(&file::read(&path)?);
        let rank = |h: &&Hierarchy| match h.version {
            Version::V2 if self.mode == Mode::Unified => 0,
            Version::V1 if h.has("memory") => 1,
            Version::V1 if h.has("name=systemd") && self.systemd => 0,
            Version::V1 => 2,
            Version::V2 => 3,
        };
        let mut candidates: Vec<&Hierarchy> = self.hierarchies.iter().collect();
        candidates.sort_by_key(rank);
        for hierarchy in candidates {
            for (line, found) in &lines {
                if hierarchy.is_line(line) {
                    return Ok(hierarchy
                        .below_mount(found)
                        .unwrap_or_else(|| PathBuf::from("/")));
                }
            }
        }
        Err(Error::Content {
            path,
            content: "no line of a mounted hierarchy".into(),
        })
    }
}

/// Options of a version 1 cgroup mount that are no controllers.
const MOUNT_OPTIONS: [&str; 9] = [
    "rw",
    "ro",
    "noprefix",
    "clone_children",
    "xattr",
    "cpuset_v2_mode",
    "favordynmods",
    "seclabel",
    "all",
];

/// The cgroup mounts in a mountinfo file (proc_pid_mountinfo(5)). Lines of
/// other file systems, and lines that are cut off, are skipped.
pub(crate) fn parse_mountinfo(text: &str) -> Vec<Hierarchy> {
    text.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<Hierarchy> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let root = PathBuf::from(unescape(before.next()?));
    let mount = PathBuf::from(unescape(before.next()?));
    let mut after = after.split(' ');
    let version = match after.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let options: Vec<&str> = after.nth(1)?.split(',').collect();
    let controllers = match version {
        Version::V2 => Vec::new(),
        Version::V1 => options
            .iter()
            .filter(|o| !MOUNT_OPTIONS.contains(o) && !o.starts_with("release_agent="))
            .map(|o| (*o).to_owned())
            .collect(),
    };
    Some(Hierarchy {
        controllers,
        mount,
        root,
        version,
        noprefix: options.contains(&"noprefix"),
    })
}

/// Undoes mountinfo's octal escapes (`\040` is a space).
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::fs;

    use super::*;

    /// A host in a temporary directory: mountinfo and cgroup lines, with `ROOT`
    /// for where `/sys/fs/cgroup` would be.
    fn host(mountinfo: &str, cgroup: &str) -> (tempfile::TempDir, Result<Host>) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("cg");
        fs::create_dir_all(temp.path().join("proc/self")).unwrap();
        fs::create_dir_all(root.join("unified")).unwrap();
        fs::write(root.join("unified/cgroup.controllers"), "hugetlb misc\n").unwrap();
        let mountinfo = mountinfo.replace("ROOT", root.to_str().unwrap());
        fs::write(temp.path().join("proc/self/mountinfo"), mountinfo).unwrap();
        fs::write(temp.path().join("proc/self/cgroup"), cgroup).unwrap();
        let host = Host::at(&root, &temp.path().join("proc"));
        (temp, host)
    }

    const OTHERS: &str = "22 1 0:20 / /proc rw - proc proc rw\n31 23 0:28 / ROOT rw - tmpfs tmpfs rw,mode=755\ntorn line\n";

    #[test]
    fn a_hybrid_host() {
        let mounts = format!(
            "{OTHERS}33 31 0:30 / ROOT/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             35 31 0:32 / ROOT/memory rw master:1 shared:2 - cgroup cgroup rw,memory,release_agent=/x\n\
             36 31 0:33 / ROOT/cpuset rw - cgroup none rw,noprefix,cpuset,clone_children\n\
             40 31 0:37 / ROOT/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
             41 31 0:38 / ROOT/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
        );
        let (temp, host) = host(
            &mounts,
            "4:memory:/m\n3:cpu,cpuacct:/c\n1:name=systemd:/s:1\n0::/u\n",
        );
        let host = host.unwrap();
        assert_eq!(host.mode(), Mode::Hybrid);
        let mut names: Vec<_> = host
            .hierarchies()
            .iter()
            .map(|h| h.controllers.join(","))
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "cpu,cpuacct",
                "cpuset",
                "hugetlb,misc",
                "memory",
                "name=systemd"
            ]
        );
        assert!(
            host.hierarchies()
                .iter()
                .all(|h| h.noprefix == h.has("cpuset"))
        );
        let cpu = host
            .hierarchies()
            .iter()
            .find(|h| h.has("cpuacct"))
            .unwrap();
        assert_eq!(
            cpu.directory(Path::new("/a/b")),
            temp.path().join("cg/cpu,cpuacct/a/b")
        );
        assert_eq!(host.own_cgroup().unwrap(), Path::new("/m"));
        assert_eq!(
            host.with_systemd(true).own_cgroup().unwrap(),
            Path::new("/s:1")
        );
    }

    #[test]
    fn a_version_2_host() {
        let mounts = "30 23 0:26 / ROOT rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n\
             99 23 0:26 / /var/lib/x/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let (_temp, host) = host(mounts, "0::/system.slice/a b.service\n");
        let host = host.unwrap();
        assert_eq!((host.mode(), host.hierarchies().len()), (Mode::Unified, 1));
        assert_eq!(
            host.own_cgroup().unwrap(),
            Path::new("/system.slice/a b.service")
        );
    }

    #[test]
    fn a_version_1_host_in_a_container() {
        // Docker without a cgroup namespace: the mount shows a part only.
        let mounts = format!(
            "{OTHERS}35 31 0:32 /docker/0\\040a ROOT/memory ro - cgroup cgroup rw,memory\n\
             36 31 0:32 / /elsewhere/memory rw - cgroup cgroup rw,memory\n"
        );
        let (temp, host) = host(&mounts, "4:memory:/docker/0 a/inner\n");
        let host = host.unwrap();
        assert_eq!(host.mode(), Mode::Legacy);
        assert_eq!(host.hierarchies().len(), 1);
        assert_eq!(host.hierarchies()[0].mount, temp.path().join("cg/memory"));
        assert_eq!(host.hierarchies()[0].root, Path::new("/docker/0 a"));
        // Not /docker/0 a/docker/0 a/inner.
        assert_eq!(host.own_cgroup().unwrap(), Path::new("/inner"));
    }

    #[test]
    fn a_mount_over_another_hides_it() {
        let mounts = "30 23 0:26 / ROOT rw - cgroup2 cgroup2 rw\n31 30 0:26 /nest ROOT rw - cgroup2 cgroup2 rw\n";
        let (_temp, host) = host(mounts, "0::/nest/self\n");
        assert_eq!(host.unwrap().own_cgroup().unwrap(), Path::new("/self"));
    }

    #[test]
    fn a_host_without_cgroups() {
        let (_temp, host) = host(OTHERS, "");
        assert!(
            host.unwrap_err()
                .to_string()
                .starts_with("no cgroup hierarchy is mounted below")
        );
    }

    proptest! {
        #[test]
        fn any_text_of_mountinfo_is_read(text in "([0-9a-z/:, -]{0,20}( - cgroup2? [a-z,]{0,9} [a-z,]{0,9})?\n){0,4}") {
            for hierarchy in parse_mountinfo(&text) {
                prop_assert_eq!(hierarchy.version == Version::V2, hierarchy.controllers.is_empty());
            }
        }

        #[test]
        fn any_mount_point_survives_its_escapes(path in "/[a-zä \t\n\\\\]{0,20}") {
            let escaped: String = path
                .bytes()
                .map(|byte| match byte {
                    b' ' | b'\t' | b'\n' | b'\\' | 0x80.. => format!("\\{byte:03o}"),
                    byte => char::from(byte).to_string(),
                })
                .collect();
            prop_assert_eq!(unescape(&escaped), path);
        }
    }
}
