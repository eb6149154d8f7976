//! From `linux.cgroupsPath` to a place in the hierarchy: pure, and the same
//! place with and without systemd.
//!
//! The form of the path decides. `slice:prefix:name` names a unit, which on a
//! host without systemd is the directory that systemd would have made. All
//! else is a directory, also an absolute path that ends in `.scope`: Nomad
//! makes such directories itself, and a unit of that name would fight with it.
//! The rules are those of runc (opencontainers/cgroups 0.1.0), with more
//! refused: what systemd would refuse later is refused here, on every host.

use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::host::{Host, Mode};

/// What a cgroups path is relative to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// How cgroups are mounted.
    pub mode: Mode,
    /// The caller's own cgroup as a path below the mount.
    pub own_cgroup: PathBuf,
    /// Whether units can be made.
    pub systemd: bool,
    /// Whether the caller works without root, under a user's systemd.
    pub rootless: bool,
}

impl Origin {
    /// The origin of paths for a process with root on this host.
    ///
    /// # Errors
    /// See [`Host::own_cgroup`].
    pub fn of(host: &Host) -> Result<Self> {
        Ok(Self {
            mode: host.mode(),
            own_cgroup: host.own_cgroup()?,
            systemd: host.systemd_running(),
            rootless: false,
        })
    }
}

/// Where a container's cgroup is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupPath {
    /// A directory that the caller makes.
    Directory {
        /// Below each hierarchy's mount; absolute and clean.
        path: PathBuf,
    },
    /// A unit that systemd makes.
    Unit {
        /// The slice it is in, as it was given: not expanded.
        slice: String,
        /// The unit's name: `….scope`, or `….slice`.
        unit: String,
        /// Where systemd is going to put it. Where the live unit's
        /// ControlGroup differs (`cpu.slice` lives in `_cpu.slice`), that wins.
        path: PathBuf,
    },
}

impl CgroupPath {
    /// Understands `linux.cgroupsPath` for the container `id`.
    ///
    /// An absolute path is below the mount. A relative one is below the
    /// caller's own cgroup on version 1 and beside it on version 2, where a
    /// cgroup with processes cannot have children with controllers. No path,
    /// or an empty one, is the relative path `id`. `..` never climbs out.
    ///
    /// # Errors
    /// The path is malformed, or names the root of the hierarchy.
    pub fn parse(cgroups_path: Option<&str>, id: &str, origin: &Origin) -> Result<Self> {
        let text = match cgroups_path {
            None | Some("") if id.is_empty() => {
                return fault("", "there is neither a path nor an id");
            }
            None | Some("") => id,
            Some(path) => path,
        };
        if text.chars().any(char::is_control) {
            return fault(text, "it holds a control character");
        }
        if text.contains(':') {
            return Self::parse_unit(text, origin);
        }
        let cleaned = clean(Path::new(text));
        if cleaned == Path::new("/") {
            return fault(
                text,
                "it names the root of the hierarchy; a container needs a cgroup of its own",
            );
        }
        if cleaned.components().any(|c| c.as_os_str().len() > NAME_MAX) {
            return fault(text, "a part of it is longer than 255 bytes");
        }
        let path = if text.starts_with('/') {
            cleaned
        } else {
            join(&base(origin), &cleaned)
        };
        Ok(Self::Directory { path })
    }

    /// Below each hierarchy's mount; absolute and clean.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory { path } | Self::Unit { path, .. } => path,
        }
    }

    /// The same place as a plain directory, for when systemd cannot be asked.
    #[must_use]
    pub fn into_directory(self) -> Self {
        match self {
            Self::Directory { path } | Self::Unit { path, .. } => Self::Directory { path },
        }
    }

    fn parse_unit(text: &str, origin: &Origin) -> Result<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let [slice, prefix, name] = parts[..] else {
            return fault(text, "a path with a colon must be slice:prefix:name");
        };
        if origin.rootless && origin.systemd && origin.mode != Mode::Unified {
            return fault(text, "a unit without root needs cgroup v2");
        }
        let slice = match slice {
            "" if origin.rootless && origin.mode == Mode::Unified => "user.slice",
            "" => "system.slice",
            slice => slice,
        };
        let mut path = expand_slice(slice).map_err(|reason| Error::Path {
            path: text.into(),
            reason,
        })?;
        if origin.rootless
            && let Some(manager) = user_manager(&origin.own_cgroup)
        {
            path = join(&manager, &path);
        }
        let unit = if name.ends_with(".slice") {
            match expand_slice(name) {
                Ok(expanded) if expanded == Path::new("/") => {
                    return fault(text, "the root slice is not ours to make");
                }
                Ok(_) => name.to_owned(),
                Err(reason) => return fault(text, reason),
            }
        } else {
            format!("{prefix}-{name}.scope")
        };
        if let Some(reason) = unit_fault(&unit) {
            return fault(text, reason);
        }
        path.push(&unit);
        Ok(if origin.systemd {
            Self::Unit {
                slice: slice.to_owned(),
                unit,
                path,
            }
        } else {
            Self::Directory { path }
        })
    }
}

/// The directory of a slice: `a-b.slice` is `/a.slice/a-b.slice`, and `-.slice`
/// is the root. `\x2d` is four ordinary characters (systemd.slice(5)).
///
/// # Errors
/// What is wrong with the name.
pub fn expand_slice(slice: &str) -> std::result::Result<PathBuf, &'static str> {
    let stem = slice
        .strip_suffix(".slice")
        .ok_or("a slice must end in .slice")?;
    if stem == "-" {
        return Ok(PathBuf::from("/"));
    }
    if stem.contains('/') {
        return Err("a slice is a name, without a slash");
    }
    if stem.split('-').any(str::is_empty) {
        return Err("a part of the slice's name between dashes is empty");
    }
    if let Some(reason) = unit_fault(slice) {
        return Err(reason);
    }
    let ends = stem
        .match_indices('-')
        .map(|(at, _)| at)
        .chain([stem.len()]);
    Ok(ends.fold(PathBuf::from("/"), |path, end| {
        path.join(format!("{}.slice", &stem[..end]))
    }))
}

/// The longest name of a file, and of a unit.
const NAME_MAX: usize = 255;

/// What systemd would refuse in a unit's name (`unit_name_is_valid`).
fn unit_fault(unit: &str) -> Option<&'static str> {
    let ordinary = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '\\');
    if unit.len() > NAME_MAX {
        Some("the unit's name would be longer than 255 bytes")
    } else if unit.contains('/') {
        Some("a unit's name cannot hold a slash")
    } else if !unit.chars().all(|c| ordinary(c) || c == '@')
        || unit.matches('@').count() > 1
        || unit.starts_with('@')
    {
        Some("a unit's name holds only letters, digits, one @ (not at the start) and _ . - \\")
    } else {
        None
    }
}

/// What a relative path is relative to.
fn base(origin: &Origin) -> PathBuf {
    let own = clean(&origin.own_cgroup);
    match origin.mode {
        Mode::Unified => own
            .parent()
            .map_or_else(|| PathBuf::from("/"), Path::to_path_buf),
        Mode::Legacy | Mode::Hybrid => own,
    }
}

/// The cgroup of the user's systemd, in which it makes its units: the part of
/// the caller's own cgroup up to `user@UID.service`, or beside a login session.
fn user_manager(own: &Path) -> Option<PathBuf> {
    let mut path = PathBuf::from("/");
    for part in own.components().skip(1) {
        let name = part.as_os_str().to_str()?;
        path.push(name);
        if name.starts_with("user@") && name.ends_with(".service") {
            return Some(path);
        }
        let uid = name
            .strip_prefix("user-")
            .and_then(|n| n.strip_suffix(".slice"));
        if let Some(uid) = uid.filter(|u| u.bytes().all(|b| b.is_ascii_digit())) {
            return Some(path.join(format!("user@{uid}.service")));
        }
    }
    None
}

/// The path as seen from the root: `.` and doubled slashes go, `..` goes with
/// what is before it, and at the root it goes nowhere.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

fn join(base: &Path, path: &Path) -> PathBuf {
    base.join(path.strip_prefix("/").unwrap_or(path))
}

fn fault<T>(path: &str, reason: &'static str) -> Result<T> {
    Err(Error::Path {
        path: path.to_owned(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn origin(mode: Mode, own: &str, systemd: bool) -> Origin {
        Origin {
            mode,
            own_cgroup: PathBuf::from(own),
            systemd,
            rootless: false,
        }
    }

    fn path_of(text: &str, origin: &Origin) -> std::result::Result<String, String> {
        match CgroupPath::parse(Some(text), "id", origin) {
            Ok(path) => Ok(path.path().display().to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn directories() {
        let v1 = origin(Mode::Legacy, "/own/leaf", false);
        let v2 = origin(Mode::Unified, "/own/leaf", false);
        for (text, on_v1, on_v2) in [
            (
                "/kubepods/burstable/podX/c",
                "/kubepods/burstable/podX/c",
                "/kubepods/burstable/podX/c",
            ),
            (
                "/nomad.slice/1-2.web.scope",
                "/nomad.slice/1-2.web.scope",
                "/nomad.slice/1-2.web.scope",
            ),
            ("//a//./b/", "/a/b", "/a/b"),
            ("/../x", "/x", "/x"),
            ("/a/../../../x", "/x", "/x"),
            ("foo/bar", "/own/leaf/foo/bar", "/own/foo/bar"),
            ("../../x", "/own/leaf/x", "/own/x"),
            ("foo/../bar", "/own/leaf/bar", "/own/bar"),
            ("", "/own/leaf/id", "/own/id"),
        ] {
            for systemd in [false, true] {
                assert_eq!(
                    path_of(
                        text,
                        &Origin {
                            systemd,
                            ..v1.clone()
                        }
                    )
                    .as_deref(),
                    Ok(on_v1),
                    "{text}"
                );
                assert_eq!(
                    path_of(
                        text,
                        &Origin {
                            systemd,
                            ..v2.clone()
                        }
                    )
                    .as_deref(),
                    Ok(on_v2),
                    "{text}"
                );
            }
        }
        assert_eq!(
            path_of("x", &origin(Mode::Unified, "/", false)).as_deref(),
            Ok("/x")
        );
        let none = CgroupPath::parse(None, "id", &v2).unwrap();
        assert_eq!(
            none,
            CgroupPath::Directory {
                path: "/own/id".into()
            }
        );
    }

    #[test]
    fn units() {
        for (text, slice, unit, path) in [
            (
                "system.slice:docker:abc",
                "system.slice",
                "docker-abc.scope",
                "/system.slice/docker-abc.scope",
            ),
            (
                ":docker:abc",
                "system.slice",
                "docker-abc.scope",
                "/system.slice/docker-abc.scope",
            ),
            (
                "system.slice::abc",
                "system.slice",
                "-abc.scope",
                "/system.slice/-abc.scope",
            ),
            ("::", "system.slice", "-.scope", "/system.slice/-.scope"),
            (
                "a-b-c.slice:p:n",
                "a-b-c.slice",
                "p-n.scope",
                "/a.slice/a-b.slice/a-b-c.slice/p-n.scope",
            ),
            ("-.slice:p:n", "-.slice", "p-n.scope", "/p-n.scope"),
            (
                "x.slice:p:a.scope",
                "x.slice",
                "p-a.scope.scope",
                "/x.slice/p-a.scope.scope",
            ),
            (
                "x.slice:p:y.slice",
                "x.slice",
                "y.slice",
                "/x.slice/y.slice",
            ),
            (
                r"machine-rkt\x2d1.slice:p:n",
                r"machine-rkt\x2d1.slice",
                "p-n.scope",
                r"/machine.slice/machine-rkt\x2d1.slice/p-n.scope",
            ),
            (
                "kubepods-burstable-podX.slice:cri-containerd:c1",
                "kubepods-burstable-podX.slice",
                "cri-containerd-c1.scope",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podX.slice/cri-containerd-c1.scope",
            ),
        ] {
            for mode in [Mode::Legacy, Mode::Hybrid, Mode::Unified] {
                let with =
                    CgroupPath::parse(Some(text), "id", &origin(mode, "/own", true)).unwrap();
                let expected = CgroupPath::Unit {
                    slice: slice.into(),
                    unit: unit.into(),
                    path: path.into(),
                };
                assert_eq!(with, expected, "{text}");
                let without =
                    CgroupPath::parse(Some(text), "id", &origin(mode, "/own", false)).unwrap();
                assert_eq!(
                    without,
                    CgroupPath::Directory { path: path.into() },
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn malformed_paths_are_refused_with_a_reason() {
        let long = format!("system.slice:p:{}", "n".repeat(250));
        for (text, reason) in [
            ("a:b", "slice:prefix:name"),
            ("a:b:c:d", "slice:prefix:name"),
            ("/kubepods/x:y:z", "must end in .slice"),
            ("/x.slice:y:z", "without a slash"),
            ("/a:b", "slice:prefix:name"),
            ("system:p:n", "must end in .slice"),
            ("X.SLICE:p:n", "must end in .slice"),
            (".slice:p:n", "between dashes is empty"),
            ("-a.slice:p:n", "between dashes is empty"),
            ("a-.slice:p:n", "between dashes is empty"),
            ("a--b.slice:p:n", "between dashes is empty"),
            ("-:p:n", "must end in .slice"),
            ("a/b.slice:p:n", "without a slash"),
            ("x.slice:p:a/b", "cannot hold a slash"),
            ("x.slice:p/q:n", "cannot hold a slash"),
            ("x.slice:p:..", ""),
            ("x.slice:p:a b", "holds only letters"),
            ("x y.slice:p:n", "holds only letters"),
            ("x.slice:@:n", "holds only letters"),
            ("x.slice:p:-.slice", "the root slice"),
            ("x.slice:p:a--b.slice", "between dashes is empty"),
            (&long, "longer than 255"),
            ("/", "the root of the hierarchy"),
            ("/..", "the root of the hierarchy"),
            (".", "the root of the hierarchy"),
            ("a\nb", "control character"),
            ("a\0b", "control character"),
        ] {
            let answer = path_of(text, &origin(Mode::Unified, "/own/x", true));
            match reason {
                "" => assert_eq!(answer.as_deref(), Ok("/x.slice/p-...scope"), "{text:?}"),
                reason => assert!(
                    answer.as_ref().is_err_and(|e| e.contains(reason)),
                    "{text:?}: {answer:?}"
                ),
            }
        }
    }

    #[test]
    fn without_root_the_users_systemd_is_the_base() {
        for own in [
            "/user.slice/user-1001.slice/user@1001.service/app.slice/x.scope",
            "/user.slice/user-1001.slice/user@1001.service",
            "/user.slice/user-1001.slice/session-3.scope",
        ] {
            let origin = Origin {
                rootless: true,
                ..origin(Mode::Unified, own, true)
            };
            let manager = "/user.slice/user-1001.slice/user@1001.service";
            assert_eq!(
                path_of(":p:n", &origin),
                Ok(format!("{manager}/user.slice/p-n.scope"))
            );
            assert_eq!(
                path_of("a-b.slice:p:n", &origin),
                Ok(format!("{manager}/a.slice/a-b.slice/p-n.scope"))
            );
        }
        let v1 = Origin {
            rootless: true,
            ..origin(Mode::Hybrid, "/own", true)
        };
        assert!(path_of(":p:n", &v1).is_err_and(|e| e.contains("needs cgroup v2")));
    }

    fn any_mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Mode::Legacy), Just(Mode::Hybrid), Just(Mode::Unified)]
    }

    proptest! {
        #[test]
        fn any_path_stays_below_the_root_and_has_no_colon(
            text in "[a-z./:@ -]{0,24}", mode in any_mode(), systemd: bool,
        ) {
            if let Ok(path) = CgroupPath::parse(Some(&text), "id", &origin(mode, "/own/x", systemd)) {
                prop_assert!(path.path().is_absolute());
                prop_assert!(path.path().components().skip(1).all(|c| matches!(c, Component::Normal(_))));
                prop_assert!(path.path().parent().is_some());
                prop_assert!(!path.path().to_string_lossy().contains(':'));
                let round = CgroupPath::parse(path.path().to_str(), "id", &origin(mode, "/own/x", systemd)).unwrap();
                prop_assert_eq!(round.path(), path.path(), "an absolute path is its own translation");
            }
        }

        #[test]
        fn any_place_is_the_same_with_and_without_systemd(text in "[a-z./:-]{0,24}(\\.slice)?:?[a-z]{0,3}:?[a-z]{0,3}", mode in any_mode()) {
            let with = path_of(&text, &origin(mode, "/own/x", true));
            let without = path_of(&text, &origin(mode, "/own/x", false));
            prop_assert_eq!(with, without);
        }

        #[test]
        fn any_unit_is_understood_as_printed(
            slice in "[a-z0-9]{1,4}(-[a-z0-9]{1,4}){0,3}\\.slice", prefix in "[a-z]{0,5}", name in "[a-z0-9._]{1,9}",
        ) {
            prop_assume!(!name.ends_with(".slice"));
            let at = origin(Mode::Unified, "/own", true);
            let text = format!("{slice}:{prefix}:{name}");
            let CgroupPath::Unit { slice: s, unit, path } = CgroupPath::parse(Some(&text), "id", &at).unwrap() else {
                panic!("{text} is no unit");
            };
            let rest = unit.strip_suffix(".scope").unwrap();
            let (p, n) = rest.split_once('-').unwrap();
            prop_assert_eq!(format!("{s}:{p}:{n}"), text);
            prop_assert_eq!(path, expand_slice(&slice).unwrap().join(unit));
        }
    }
}
