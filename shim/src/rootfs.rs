//! The container's root: the snapshotter's mounts, made and taken down.

use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};
use protos::task::Mount;

use crate::error::{Error, Result};

/// Makes the mounts on `target`, one over the other. What was made before a
/// refusal is taken down again.
///
/// # Errors
/// [`Error::Mount`] names the one that was refused, with its options.
pub fn mount_all(mounts: &[Mount], target: &Path) -> Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(target).map_err(Error::file("create", target))?;
    for one in mounts {
        if let Err(error) = mount_one(one, target) {
            unmount_all(target)?;
            return Err(error);
        }
    }
    Ok(())
}

/// Takes down everything that is mounted on `target`. Something that still uses
/// it must not keep the task from being deleted, so the mount is detached.
///
/// # Errors
/// The system's refusal; a target that is gone, or no mount, is done already.
pub fn unmount_all(target: &Path) -> Result<()> {
    loop {
        match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
            Err(source) => {
                return Err(Error::Mount {
                    action: "unmount",
                    target: target.into(),
                    details: "the container's root".into(),
                    source,
                });
            }
        }
    }
}

/// Checks that the root is there, before anything is looked for in it.
///
/// # Errors
/// [`Error::InvalidArgument`]: it is not, or is no directory.
pub fn check(root: &Path) -> Result<()> {
    let fault = match std::fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "it is no directory".to_owned(),
        Err(error) => error.to_string(),
    };
    let path = root.display();
    Err(Error::InvalidArgument(format!(
        "config.json: root.path: {path}: {fault}"
    )))
}

/// Whether nothing can be written to the file system that holds `root`, as with
/// a view of a snapshot.
///
/// # Errors
/// The system's refusal, for instance because `root` does not exist.
pub fn is_read_only(root: &Path) -> Result<bool> {
    let stat = statvfs(root).map_err(|errno| Error::file("look at", root)(errno.into()))?;
    Ok(stat.flags().contains(FsFlags::ST_RDONLY))
}

fn mount_one(one: &Mount, target: &Path) -> Result<()> {
    let target = inside(target, &one.target);
    let options = Options::parse(&one.options);
    let refused = |source| Error::Mount {
        action: "mount",
        target: target.clone(),
        details: format!(
            "type {} source {} options {}",
            one.type_,
            one.source,
            shorten(&one.options.join(","))
        ),
        source,
    };
    let data = options.data.join(",");
    if data.len() < PAGE {
        let call = Call {
            one,
            target: &target,
            options: &options,
            data: &data,
        };
        return call.mount().map_err(refused);
    }
    // The kernel takes one page of options. With many layers only their common
    // directory makes them too long: from inside it the paths are short.
    let Some((directory, data)) = relative_to_common_directory(&options.data) else {
        return Err(refused(Errno::E2BIG));
    };
    if data.len() >= PAGE {
        return Err(refused(Errno::E2BIG));
    }
    let call = Call {
        one,
        target: &target,
        options: &options,
        data: &data,
    };
    std::thread::scope(|scope| {
        // A thread with a current directory of its own; the process keeps its.
        let inside = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS)?;
            nix::unistd::chdir(&directory)?;
            call.mount()
        });
        inside.join().unwrap_or(Err(Errno::EIO))
    })
    .map_err(refused)
}

/// One mount(2), with its remounts.
#[derive(Clone, Copy)]
struct Call<'a> {
    one: &'a Mount,
    target: &'a Path,
    options: &'a Options,
    data: &'a str,
}

impl Call<'_> {
    fn mount(self) -> nix::Result<()> {
        let Self {
            one,
            target,
            options,
            data,
        } = self;
        let flags = options.flags;
        let data = (!data.is_empty()).then_some(data);
        mount(
            Some(one.source.as_str()),
            target,
            Some(one.type_.as_str()),
            flags & !PROPAGATION,
            data,
        )?;
        // A bind mount takes its other flags only when it is there already.
        let narrowing = flags & !(MsFlags::MS_BIND | MsFlags::MS_REC | PROPAGATION);
        let made = if flags.contains(MsFlags::MS_BIND) && !narrowing.is_empty() {
            let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | narrowing;
            mount(None::<&str>, target, None::<&str>, again, None::<&str>)
        } else {
            Ok(())
        };
        let propagation = flags & PROPAGATION;
        made.and_then(|()| {
            if propagation.is_empty() {
                return Ok(());
            }
            let recursive = propagation | (flags & MsFlags::MS_REC);
            mount(None::<&str>, target, None::<&str>, recursive, None::<&str>)
        })
    }
}

/// Longest options that the kernel takes, with their terminating zero.
const PAGE: usize = 4096;

const PROPAGATION: MsFlags = MsFlags::MS_SHARED
    .union(MsFlags::MS_SLAVE)
    .union(MsFlags::MS_PRIVATE)
    .union(MsFlags::MS_UNBINDABLE);

#[derive(Debug, PartialEq)]
struct Options {
    flags: MsFlags,
    data: Vec<String>,
}

impl Options {
    /// Sorts options into flags and what the file system itself understands
    /// (containerd core/mount).
    fn parse(words: &[String]) -> Self {
        let mut options = Self {
            flags: MsFlags::empty(),
            data: Vec::new(),
        };
        for word in words {
            let (clear, flag) = match word.as_str() {
                "async" => (true, MsFlags::MS_SYNCHRONOUS),
                "atime" => (true, MsFlags::MS_NOATIME),
                "bind" => (false, MsFlags::MS_BIND),
                "defaults" | "loop" => continue,
                "dev" => (true, MsFlags::MS_NODEV),
                "diratime" => (true, MsFlags::MS_NODIRATIME),
                "dirsync" => (false, MsFlags::MS_DIRSYNC),
                "exec" => (true, MsFlags::MS_NOEXEC),
                "mand" => (false, MsFlags::MS_MANDLOCK),
                "noatime" => (false, MsFlags::MS_NOATIME),
                "nodev" => (false, MsFlags::MS_NODEV),
                "nodiratime" => (false, MsFlags::MS_NODIRATIME),
                "noexec" => (false, MsFlags::MS_NOEXEC),
                "nomand" => (true, MsFlags::MS_MANDLOCK),
                "norelatime" => (true, MsFlags::MS_RELATIME),
                "nostrictatime" => (true, MsFlags::MS_STRICTATIME),
                "nosuid" => (false, MsFlags::MS_NOSUID),
                "private" => (false, MsFlags::MS_PRIVATE),
                "rbind" => (false, MsFlags::MS_BIND.union(MsFlags::MS_REC)),
                "relatime" => (false, MsFlags::MS_RELATIME),
                "remount" => (false, MsFlags::MS_REMOUNT),
                "ro" => (false, MsFlags::MS_RDONLY),
                "rprivate" => (false, MsFlags::MS_PRIVATE.union(MsFlags::MS_REC)),
                "rshared" => (false, MsFlags::MS_SHARED.union(MsFlags::MS_REC)),
                "rslave" => (false, MsFlags::MS_SLAVE.union(MsFlags::MS_REC)),
                "rw" => (true, MsFlags::MS_RDONLY),
                "shared" => (false, MsFlags::MS_SHARED),
                "slave" => (false, MsFlags::MS_SLAVE),
                "strictatime" => (false, MsFlags::MS_STRICTATIME),
                "suid" => (true, MsFlags::MS_NOSUID),
                "sync" => (false, MsFlags::MS_SYNCHRONOUS),
                _ => {
                    options.data.push(word.clone());
                    continue;
                }
            };
            options.flags.set(flag, !clear);
        }
        options
    }
}

/// A directory above all layers, and the options with paths relative to it.
fn relative_to_common_directory(data: &[String]) -> Option<(PathBuf, String)> {
    let keys = ["lowerdir=", "upperdir=", "workdir="];
    let paths = |option: &str| -> Option<(&'static str, Vec<PathBuf>)> {
        let key = keys.into_iter().find(|key| option.starts_with(key))?;
        Some((
            key,
            option[key.len()..].split(':').map(PathBuf::from).collect(),
        ))
    };
    let mut common: Option<PathBuf> = None;
    for (_, paths) in data.iter().filter_map(|option| paths(option)) {
        for path in paths {
            let parent = path.parent()?.to_owned();
            common = Some(match common {
                None => parent,
                Some(before) => before
                    .components()
                    .zip(parent.components())
                    .take_while(|(a, b)| a == b)
                    .map(|(component, _)| component)
                    .collect(),
            });
        }
    }
    let common = common?;
    let shorter: Option<Vec<String>> = data
        .iter()
        .map(|option| match paths(option) {
            None => Some(option.clone()),
            Some((key, paths)) => {
                let paths: Option<Vec<&str>> = paths
                    .iter()
                    .map(|path| path.strip_prefix(&common).ok()?.to_str())
                    .collect();
                Some(format!("{key}{}", paths?.join(":")))
            }
        })
        .collect();
    Some((common, shorter?.join(",")))
}

/// `target` below `root`, which `..` does not leave.
fn inside(root: &Path, target: &str) -> PathBuf {
    let mut path = root.to_owned();
    let mut depth = 0;
    for component in Path::new(target).components() {
        match component {
            Component::Normal(name) => {
                path.push(name);
                depth += 1;
            }
            Component::ParentDir if depth > 0 => {
                path.pop();
                depth -= 1;
            }
            _ => {}
        }
    }
    path
}

/// The beginning of a long text, for an error.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn options_become_flags_or_data() {
        let options = Options::parse(&words(
            "rbind,ro,nosuid,suid,rprivate,lowerdir=/a:/b,index=off",
        ));
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC | MsFlags::MS_RDONLY | MsFlags::MS_PRIVATE;
        assert_eq!(
            options,
            Options {
                flags,
                data: words("lowerdir=/a:/b,index=off")
            }
        );
    }

    #[test]
    fn long_overlay_options_shrink_to_relative_paths() {
        let (directory, data) = relative_to_common_directory(&words(
            "index=off,workdir=/s/9/work,upperdir=/s/9/fs,lowerdir=/s/8/fs:/s/7/fs",
        ))
        .unwrap();
        assert_eq!(directory, Path::new("/s"));
        assert_eq!(
            data,
            "index=off,workdir=9/work,upperdir=9/fs,lowerdir=8/fs:7/fs"
        );
        assert_eq!(relative_to_common_directory(&words("size=1")), None);
    }

    #[test]
    fn a_target_stays_inside() {
        assert_eq!(inside(Path::new("/r"), ""), Path::new("/r"));
        assert_eq!(inside(Path::new("/r"), "/a/../../../b"), Path::new("/r/b"));
    }

    /// Real mounts: needs root, as everything here does.
    #[test]
    fn mounts_are_made_over_each_other_and_all_taken_down() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("rootfs");
        let above = directory.path().join("x".repeat(60));
        let layers: Vec<PathBuf> = (0..100)
            .map(|number| above.join(number.to_string()))
            .collect();
        for layer in &layers {
            std::fs::create_dir_all(layer).unwrap();
        }
        std::fs::write(layers[0].join("top"), "1").unwrap();
        std::fs::write(layers[99].join("bottom"), "2").unwrap();
        let lower: Vec<&str> = layers.iter().map(|layer| layer.to_str().unwrap()).collect();
        let overlay = Mount {
            type_: "overlay".into(),
            source: "overlay".into(),
            options: vec![format!("lowerdir={}", lower.join(":"))],
            ..Mount::default()
        };
        let bind = Mount {
            type_: "bind".into(),
            source: layers[0].to_str().unwrap().into(),
            options: words("rbind,ro"),
            ..Mount::default()
        };
        mount_all(std::slice::from_ref(&overlay), &target).unwrap();
        assert_eq!(std::fs::read_to_string(target.join("top")).unwrap(), "1");
        assert_eq!(std::fs::read_to_string(target.join("bottom")).unwrap(), "2");
        mount_all(std::slice::from_ref(&bind), &target).unwrap();
        assert!(!target.join("bottom").exists());
        let refused = std::fs::write(target.join("new"), "").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(nix::libc::EROFS));
        let wrong = Mount {
            type_: "nonesuch".into(),
            source: "none".into(),
            ..Mount::default()
        };
        let error = mount_all(&[overlay, wrong], &target).unwrap_err();
        assert!(error.to_string().contains("nonesuch"), "{error}");
        assert_eq!(
            std::fs::read_dir(&target).unwrap().count(),
            0,
            "all is taken down"
        );
        unmount_all(&target).unwrap();
    }

    proptest! {
        #[test]
        fn any_option_is_a_flag_or_kept(words in prop::collection::vec("(ro|rw|bind|rbind|nosuid|[a-z=:/]{0,12})", 0..8)) {
            let options = Options::parse(&words);
            prop_assert!(options.data.iter().all(|option| words.contains(option)));
            prop_assert!(options.data.len() <= words.len());
        }

        #[test]
        fn any_layers_are_the_same_from_their_common_directory(
            base in "/[a-z]{1,4}(/[a-z]{1,4}){0,2}", layers in prop::collection::vec("[a-z]{1,4}/[0-9]{1,3}", 1..6),
        ) {
            let list: Vec<_> = layers.iter().map(|layer| format!("{base}/{layer}")).collect();
            let given = vec![format!("lowerdir={}", list.join(":"))];
            if let Some((directory, data)) = relative_to_common_directory(&given) {
                let back: Vec<_> = data["lowerdir=".len()..].split(':').map(|path| directory.join(path)).collect();
                prop_assert_eq!(back, list.iter().map(PathBuf::from).collect::<Vec<_>>());
            }
        }
    }
}
