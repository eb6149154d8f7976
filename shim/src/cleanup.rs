//! `delete`, and the taking apart that it shares with the Delete call: after a
//! shim that was killed, a create that failed, or the ordinary end of a task.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use cgroups::{Cgroup, Host};
use protos::protobuf::Message as _;
use protos::protobuf::well_known_types::any::Any;
use protos::task::DeleteResponse;

use crate::args::Flags;
use crate::config::Config;
use crate::create::{blocking, sandbox_config};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::placement::Placement;
use crate::process::Exit;
use crate::record::Record;
use crate::{bundle, placement, rootfs, socket, wire};

/// Runs `delete`: kills and removes what is left of the task, whatever is there
/// and whatever is not, and answers with its end.
///
/// # Errors
/// Something could not be removed; a later call tries again.
pub fn delete(flags: &Flags) -> Result<()> {
    let bundle = if flags.bundle.is_empty() {
        std::env::current_dir().map_err(Error::system("find the bundle directory"))?
    } else {
        PathBuf::from(&flags.bundle)
    };
    let found = find(flags, &bundle);
    match &found {
        Some((record, config)) => {
            let state_directory = config.state_directory(&flags.namespace);
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(Error::system("start the runtime"))?
                .block_on(demolish(record, config, &state_directory))?;
        }
        None => rootfs::unmount_all(&bundle.join("rootfs"))?,
    }
    remove_socket(flags, &bundle)?;

    let record = found.map(|(record, _)| record);
    // The status that the shim saw, if it lived to see it.
    let exit = record.as_ref().and_then(|record| record.exit);
    let exit = exit.unwrap_or(Exit {
        code: 128 + 9,
        at: SystemTime::now(),
    });
    let response = DeleteResponse {
        pid: record
            .and_then(|record| record.pid)
            .and_then(|pid| u32::try_from(pid).ok())
            .unwrap_or_default(),
        exit_status: exit.code,
        exited_at: wire::exited_at(Some(exit)),
        ..DeleteResponse::default()
    };
    let bytes = response.write_to_bytes().map_err(|source| Error::Message {
        what: "encode the answer".into(),
        source,
    })?;
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(&bytes)
        .and_then(|()| stdout.flush())
        .map_err(Error::system("write the answer to stdout"))
}

/// Takes apart whatever the record tells of: processes first, then mounts, then
/// cgroups, the record itself last. Every part may be gone already.
///
/// # Errors
/// The first part that could not be removed; the others are tried all the same.
pub async fn demolish(record: &Record, config: &Config, state_directory: &Path) -> Result<()> {
    let cleaned = clean_up(record, config, state_directory).await;
    let target = record.rootfs.clone();
    let unmounted = blocking(move || target.map_or(Ok(()), |target| rootfs::unmount_all(&target)));
    let unmounted = unmounted.await;
    let copy = record.clone();
    let removed = placement::remove(copy, Instant::now() + CGROUP_PATIENCE).await;
    cleaned.and(unmounted).and(removed)?;
    Record::remove(state_directory, &record.id)
}

/// Takes apart what is left of an earlier task of this id, which could not be
/// removed at its time: `/run` was read-only, for example.
///
/// # Errors
/// [`Error::AlreadyExists`] if its processes live: it may be another containerd's,
/// and is not touched. It still cannot be removed, or its record not be understood.
pub async fn remove_leavings(id: &str, config: &Config, state_directory: &Path) -> Result<()> {
    let Some(record) = Record::read(state_directory, id)? else {
        return Ok(());
    };
    let home = home(&record, state_directory)?;
    let sandbox_config = sandbox_config(config, state_directory);
    if sandbox::cleanup::is_in_use(&sandbox_config, &record.sandbox, id, &record.bundle, &home) {
        return Err(Error::AlreadyExists(format!(
            "task {id} exists already, with bundle {} and its state in {}: delete it first, or give each containerd a namespace or a root of its own",
            record.bundle.display(),
            state_directory.display()
        )));
    }
    log::info!("removing what an earlier task {id} left");
    demolish(&record, config, state_directory).await
}

/// Ends and removes what the sandbox, or the container in it, has left.
async fn clean_up(record: &Record, config: &Config, state_directory: &Path) -> Result<()> {
    let home = home(record, state_directory)?;
    let config = sandbox_config(config, state_directory);
    sandbox::cleanup::cleanup(&config, &record.sandbox, &record.id, &record.bundle, &home).await?;
    Ok(())
}

/// The directories of the cgroup that all processes of the record's pod are in:
/// its sandbox container's. Without a record of that it is gone, they with it.
fn home(record: &Record, state_directory: &Path) -> Result<Vec<PathBuf>> {
    let cgroup = if record.id == record.sandbox {
        Some(record.cgroup.clone())
    } else {
        Record::read(state_directory, &record.sandbox)?.map(|record| record.cgroup)
    };
    match cgroup.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => Ok(Cgroup::new(&Host::detect()?, &path)?.directories()),
        None => Ok(Vec::new()),
    }
}

/// How long the processes of a cgroup may take to die, and it to go.
const CGROUP_PATIENCE: Duration = Duration::from_secs(10);

/// The record, and the configuration whose state directory it is in. A task that
/// was never created, or is gone, has none: then the ways it would have gone are
/// looked at. None if the record is that of a task of the same id with another
/// bundle: it is another containerd's, and this one was refused for it.
fn find(flags: &Flags, bundle: &Path) -> Option<(Record, Config)> {
    let mut configs = vec![Config::read_default().unwrap_or_default()];
    if let Some(config) = left_options(bundle) {
        configs.insert(0, config);
    }
    for config in &configs {
        let state_directory = config.state_directory(&flags.namespace);
        match Record::read(&state_directory, &flags.id) {
            Ok(Some(record)) if is_same(&record.bundle, bundle) => {
                return Some((record, config.clone()));
            }
            Ok(Some(_)) => return None,
            Ok(None) => {}
            // Damaged: what can be told without it is told.
            Err(error) => eprintln!("{}", crate::error::chain(&error)),
        }
    }
    let spec = bundle::load(bundle).ok();
    let role = spec.as_ref().and_then(|spec| bundle::role(spec).ok());
    // What the spec leads to, though nobody can tell any more what was made.
    let placement = spec
        .as_ref()
        .zip(role.as_ref())
        .and_then(|(spec, role)| Placement::plan(spec, &flags.id, role).ok());
    let sandbox = match role {
        Some(bundle::Role::Member { sandbox }) => sandbox,
        Some(bundle::Role::Root) | None => flags.id.clone(),
    };
    let target = bundle.join("rootfs");
    let record = Record {
        id: flags.id.clone(),
        sandbox,
        bundle: bundle.to_owned(),
        rootfs: target.exists().then_some(target),
        cgroup: placement
            .as_ref()
            .map(|place| place.path().to_owned())
            .unwrap_or_default(),
        unit: placement
            .as_ref()
            .and_then(|place| place.unit().map(str::to_owned)),
        entered: false,
        made: Vec::new(),
        pid: None,
        exit: None,
    };
    Some((record, configs.swap_remove(0)))
}

/// Whether two paths are the same bundle, however they lead there.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one == other || real(one) == real(other)
}

/// The configuration that Create wrote into the bundle, if it came so far.
fn left_options(bundle: &Path) -> Option<Config> {
    let bytes = std::fs::read(bundle.join(OPTIONS_FILE)).ok()?;
    let any = Any::parse_from_bytes(&bytes).ok()?;
    Options::parse(Some(&any))
        .ok()
        .map(|options| options.config)
}

/// Where Create leaves the options that it was given, for `delete`.
pub const OPTIONS_FILE: &str = "rampart-options.pb";

/// A shim that was killed leaves its socket. Other tasks of the pod may still
/// be served there: only one that nobody answers at is removed.
fn remove_socket(flags: &Flags, bundle: &Path) -> Result<()> {
    let named = std::fs::read_to_string(bundle.join("address"))
        .ok()
        .and_then(|address| address.strip_prefix("unix://").map(PathBuf::from));
    let path = match named {
        Some(path) => path,
        None => socket::path(
            Path::new(socket::DEFAULT_DIRECTORY),
            &flags.address,
            &flags.namespace,
            &bundle::group(bundle, &flags.id).unwrap_or_else(|_| flags.id.clone()),
        )?,
    };
    socket::remove_dead(&path)
}
