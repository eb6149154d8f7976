//! Settings of the gVisor backend, already valid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How `runsc` is to be run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The binary.
    pub runsc: PathBuf,
    /// Directory that holds one state directory per sandbox, named by its id.
    pub root: PathBuf,
    /// How the sentry intercepts system calls.
    pub platform: Platform,
    /// Which network stack. None: chosen from the root container's spec.
    pub network: Option<Network>,
    /// Further runsc flags, without dashes, as `name` to `value`.
    pub flags: BTreeMap<String, String>,
    /// Directory for runsc's debug logs. None: no debug logs.
    pub debug_log: Option<PathBuf>,
    /// How long a command and a call may take.
    pub deadlines: Deadlines,
}

/// How the sentry intercepts system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// Seccomp traps; works everywhere.
    #[default]
    Systrap,
    /// Ptrace; for runsc of 2022, which has no systrap.
    Ptrace,
    /// KVM; an error unless a probe shows that it works.
    Kvm,
    /// KVM if a probe shows that it works, else systrap.
    Auto,
}

impl Platform {
    /// The value of runsc's `--platform`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Systrap | Self::Auto => "systrap",
            Self::Ptrace => "ptrace",
            Self::Kvm => "kvm",
        }
    }
}

/// Which network stack serves the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The sentry's own, which takes over the interfaces of the network namespace.
    Sandbox,
    /// The host kernel's, within the network namespace.
    Host,
    /// Loopback only.
    None,
}

impl Network {
    /// The value of runsc's `--network`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Host => "host",
            Self::None => "none",
        }
    }
}

/// What is decided for a sandbox before it is created, and holds for all of its
/// commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) platform: Platform,
    pub(crate) network: Network,
}

/// The flag with which the set-user-id and set-group-id bits of programs count, but
/// for processes without new privileges; runsc has had it for a short time only.
pub(crate) const ALLOW_SUID: &str = "allow-suid";

/// How long things may take before they count as failed.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// A `runsc` command.
    pub command: Duration,
    /// A call to the sentry; waits for an exit have no limit.
    pub call: Duration,
    /// The probe of a platform.
    pub probe: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            command: Duration::from_secs(60),
            call: Duration::from_secs(10),
            probe: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// The state directory of one sandbox. Its own, so that all that runsc leaves
    /// there (locks, sockets, a mounted network namespace) goes with the sandbox.
    #[must_use]
    pub fn sandbox_root(&self, sandbox_id: &str) -> PathBuf {
        self.root.join(sandbox_id)
    }

    /// The flags before the verb; `log` is the file of this one call.
    pub(crate) fn global_flags(&self, sandbox_id: &str, setup: Setup, log: &Path) -> Vec<String> {
        let mut flags = vec![
            format!("--root={}", self.sandbox_root(sandbox_id).display()),
            format!("--log={}", log.display()),
            "--log-format=json".to_owned(),
            format!("--platform={}", setup.platform.name()),
            format!("--network={}", setup.network.name()),
        ];
        if let Some(dir) = &self.debug_log {
            // The slash makes runsc put one file per command into the directory.
            flags.extend([
                "--debug".to_owned(),
                format!("--debug-log={}/", dir.display()),
            ]);
        }
        flags.extend(
            self.flags
                .iter()
                .map(|(name, value)| format!("--{name}={value}")),
        );
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_flags_come_last_so_that_they_win() {
        let config = Config {
            runsc: "/runsc".into(),
            root: "/run/r".into(),
            platform: Platform::Auto,
            network: None,
            flags: BTreeMap::from([
                ("overlay2".to_owned(), "none".to_owned()),
                ("net-raw".to_owned(), "true".to_owned()),
            ]),
            debug_log: Some("/var/log/d".into()),
            deadlines: Deadlines::default(),
        };
        let setup = Setup {
            platform: Platform::Systrap,
            network: Network::Host,
        };
        let flags = config.global_flags("s1", setup, Path::new("/b/create.log"));
        assert_eq!(
            flags,
            [
                "--root=/run/r/s1",
                "--log=/b/create.log",
                "--log-format=json",
                "--platform=systrap",
                "--network=host",
                "--debug",
                "--debug-log=/var/log/d/",
                "--net-raw=true",
                "--overlay2=none",
            ]
        );
    }
}
