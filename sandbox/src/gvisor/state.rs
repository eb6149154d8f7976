//! What runsc keeps on disk about a sandbox and its containers.

use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use serde::Deserialize;

use super::urpc::Address;
use crate::error::{Error, Result};

/// What is needed of one container's state file.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The sentry; the same for every container of a sandbox. None: not running.
    pub(crate) sentry: Option<Pid>,
    /// The container's own process for its files. None: it has ended.
    pub(crate) gofer: Option<Pid>,
    /// Where the sentry listens.
    pub(crate) address: Address,
    /// As whom the sentry runs; it must own the streams given to it.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The state file of a container.
pub(crate) fn path(root: &Path, sandbox_id: &str, id: &str) -> PathBuf {
    root.join(format!("{id}_sandbox:{sandbox_id}.state"))
}

/// Reads the state of a container; None if there is none.
pub(crate) fn load(root: &Path, sandbox_id: &str, id: &str) -> Result<Option<State>> {
    let path = path(root, sandbox_id, id);
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(Error::io("read", &path))?,
    };
    parse(&text, sandbox_id)
        .map(Some)
        .map_err(|error| Error::io("understand", path)(std::io::Error::other(error)))
}

fn parse(text: &[u8], sandbox_id: &str) -> serde_json::Result<State> {
    let raw: Raw = serde_json::from_slice(text)?;
    let sandbox = raw.sandbox.unwrap_or_default();
    let address = match sandbox.control_socket_path {
        Some(path) if !path.as_os_str().is_empty() => Address::File(path),
        // Runsc of 2022 has no such field.
        _ => Address::Abstract(format!("runsc-sandbox.{sandbox_id}")),
    };
    Ok(State {
        sentry: (sandbox.pid > 0).then(|| Pid::from_raw(sandbox.pid)),
        gofer: (raw.gofer_pid > 0).then(|| Pid::from_raw(raw.gofer_pid)),
        address,
        uid: sandbox.uid,
        gid: sandbox.gid,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    gofer_pid: i32,
    /// Null once the sandbox was destroyed.
    sandbox: Option<RawSandbox>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSandbox {
    pid: i32,
    uid: u32,
    gid: u32,
    control_socket_path: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;

    use super::*;

    #[test]
    fn current_and_old_state_are_understood() {
        let current = br#"{"id":"c","goferPid":16449,"sandbox":{"id":"s","pid":16453,"uid":1,
            "gid":2,"controlSocketPath":"/r/runsc-s.sock","restored":false}}"#;
        let state = parse(current, "s").unwrap();
        assert_eq!(state.sentry, Some(Pid::from_raw(16453)));
        assert_eq!(state.gofer, Some(Pid::from_raw(16449)));
        assert_eq!(state.address, Address::File("/r/runsc-s.sock".into()));
        assert_eq!((state.uid, state.gid), (1, 2));

        let old =
            br#"{"id":"c","goferPid":0,"sandbox":{"id":"s","pid":7,"uid":65534,"gid":65534}}"#;
        let state = parse(old, "s").unwrap();
        assert_eq!(
            state.address,
            Address::Abstract("runsc-sandbox.s".to_owned())
        );
        assert_eq!(state.uid, 65534);
    }

    #[test]
    fn a_destroyed_sandbox_has_no_sentry() {
        let state = parse(br#"{"id":"c","goferPid":-1,"sandbox":null}"#, "s").unwrap();
        assert_eq!((state.sentry, state.gofer), (None, None));
    }

    const SAMPLE: &[u8] = br#"{"id":"c","goferPid":16449,"sandbox":{"id":"s","pid":16453,"uid":1,
        "gid":2,"controlSocketPath":"/r/runsc-s.sock","restored":false}}"#;

    proptest! {
        #[test]
        fn any_state_file_is_read_or_refused(bytes in damaged(SAMPLE)) {
            if let Ok(State { sentry: Some(pid), .. }) = parse(&bytes, "s") {
                // Below it a kill would reach a group, or everybody.
                prop_assert!(pid.as_raw() > 0);
            }
        }
    }
}
