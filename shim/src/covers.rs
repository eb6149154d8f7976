//! Masked and read-only paths of a spec, which runsc ignores, as mounts, which it
//! makes.
//!
//! Those in `/proc` and `/sys` are left alone: in the sandbox these show nothing of
//! the host, and nothing can be mounted on what they do not have.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use oci_spec::runtime::{Mount, Spec};

use crate::error::{Error, Result};

/// The file in the bundle that covers masked files.
const EMPTY: &str = "rampart-masked";

/// Adds the mounts to `spec`, whose root is at `root`; paths that are not there
/// need none, as with runc.
///
/// # Errors
/// The system's refusal.
pub fn add(spec: &mut Spec, root: &Path, bundle: &Path) -> Result<()> {
    let Some(linux) = spec.linux().clone() else {
        return Ok(());
    };
    let mut mounts = Vec::new();
    for path in concerned(linux.masked_paths().as_deref()) {
        let Some((real, is_directory)) = find(root, path)? else {
            continue;
        };
        if is_directory {
            mounts.push(mount(path, "tmpfs", "tmpfs".into(), &["ro", "nosuid"]));
            continue;
        }
        let empty = bundle.join(EMPTY);
        File::create(&empty).map_err(Error::file("create", &empty))?;
        log::debug!("{} masks {}", empty.display(), real.display());
        mounts.push(mount(path, "bind", empty, &["bind", "ro"]));
    }
    let covered: Vec<PathBuf> = spec
        .mounts()
        .iter()
        .flatten()
        .map(|mount| mount.destination().clone())
        .collect();
    for path in concerned(linux.readonly_paths().as_deref()) {
        if covered.iter().any(|mount| path.starts_with(mount)) {
            log::warn!(
                "{} stays writable: it is in a volume, which must be read-only itself",
                path.display()
            );
        } else if let Some((real, _)) = find(root, path)? {
            mounts.push(mount(path, "bind", real, &["rbind", "ro"]));
        }
    }
    spec.mounts_mut().get_or_insert_default().extend(mounts);
    Ok(())
}

fn concerned(paths: Option<&[String]>) -> impl Iterator<Item = &Path> {
    paths
        .unwrap_or_default()
        .iter()
        .map(Path::new)
        .filter(|path| !path.starts_with("/proc") && !path.starts_with("/sys"))
}

/// Where `path` of the container is on the host, and whether it is a directory;
/// links do not lead out of `root`.
fn find(root: &Path, path: &Path) -> Result<Option<(PathBuf, bool)>> {
    let directory = File::open(root).map_err(Error::file("open", root))?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let Ok(found) = openat2(&directory, path, how) else {
        return Ok(None);
    };
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    let real = std::fs::read_link(&link).map_err(Error::file("resolve", &link))?;
    let metadata = File::from(found)
        .metadata()
        .map_err(Error::file("look at", &real))?;
    Ok(Some((real, metadata.is_dir())))
}

fn mount(destination: &Path, kind: &str, source: PathBuf, options: &[&str]) -> Mount {
    let mut mount = Mount::default();
    mount.set_destination(destination.into());
    mount.set_typ(Some(kind.to_owned()));
    mount.set_source(Some(source));
    mount.set_options(Some(options.iter().map(|&one| one.to_owned()).collect()));
    mount
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_there_is_covered() {
        let place = tempfile::tempdir().unwrap();
        let (root, bundle) = (place.path().join("rootfs"), place.path());
        for directory in ["bin", "data", "secret", "volume"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        std::fs::write(root.join("bin/tool"), "x").unwrap();
        symlink("/data", root.join("link")).unwrap();
        symlink("../../../../etc", root.join("climbing")).unwrap();
        let mut spec: Spec = serde_json::from_value(serde_json::json!({
            "ociVersion": "1.0.2",
            "mounts": [{"destination": "/volume", "type": "bind", "source": "/x"}],
            "linux": {
                "maskedPaths": ["/proc/kcore", "/bin/tool", "/secret", "/nothing"],
                "readonlyPaths": ["/sys/fs", "/data", "/link", "/climbing", "/volume/a"],
            },
        }))
        .unwrap();
        add(&mut spec, &root, bundle).unwrap();
        let added: Vec<_> = spec.mounts().as_ref().unwrap()[1..]
            .iter()
            .map(|mount| {
                let source = mount.source().as_ref().unwrap();
                let source = source.strip_prefix(bundle).unwrap_or(source);
                format!("{} on {}", source.display(), mount.destination().display())
            })
            .collect();
        assert_eq!(
            added,
            [
                "rampart-masked on /bin/tool",
                "tmpfs on /secret",
                "rootfs/data on /data",
                "rootfs/data on /link",
            ]
        );
        assert!(bundle.join(EMPTY).exists());
    }
}
