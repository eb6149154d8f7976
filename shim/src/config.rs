//! The configuration file: what an operator may set, with its defaults.
//!
//! Unknown keys are errors, so that a misspelt limit is seen at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Error, Result};

/// Read when the runtime options name no other file, if it exists.
pub const DEFAULT_FILE: &str = "/etc/containerd/rampart.toml";

/// How Rampart runs its sandboxes; `docs/configuration.md` has the same list
/// for people.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The `runsc` binary; a name without a slash is looked up in `PATH`.
    pub runsc: PathBuf,
    /// State of sandboxes, on a tmpfs: `<root>/<namespace>`.
    pub root: PathBuf,
    /// How gVisor intercepts system calls.
    pub platform: Platform,
    /// More flags for every `runsc` call, without their dashes.
    pub runsc_flags: BTreeMap<String, String>,
    /// Directory for runsc's debug logs; off if absent.
    pub debug_log: Option<PathBuf>,
    /// Seconds between two metrics events of a task; 0 turns them off.
    pub metrics_interval: u64,
    /// Percent by which a task's figures must have moved for a metrics event; 0
    /// sends each. See `metrics::Moving`.
    pub metrics_threshold: u64,
    /// Bytes that a sandbox needs for itself, on top of what its containers
    /// may use: added to the memory limit of a lone container, and to what a
    /// pod's containers ask for together. Unless it is set, a lone container's
    /// limit stays as it was asked, and a pod gets 32 MiB.
    pub overhead_memory: Option<u64>,
    /// Kill a container that uses more memory than its own limit, though its
    /// pod does not (gVisor itself does not enforce it).
    pub enforce_container_memory: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            runsc: "runsc".into(),
            root: "/run/rampart".into(),
            platform: Platform::Systrap,
            runsc_flags: BTreeMap::new(),
            debug_log: None,
            metrics_interval: 10,
            metrics_threshold: 0,
            overhead_memory: None,
            enforce_container_memory: true,
        }
    }
}

/// gVisor's platforms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Works everywhere; the default.
    Systrap,
    /// The older fallback.
    Ptrace,
    /// Needs a KVM that really works; a probe decides, and fails the task if
    /// it does not.
    Kvm,
    /// KVM if the probe says that it works, else systrap.
    Auto,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read or has a mistake; the parser names the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::InvalidArgument(format!("configuration {}: {error}", path.display()))
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses TOML; `origin` is named in errors.
    ///
    /// # Errors
    /// A mistake in the text.
    pub fn parse(text: &str, origin: &str) -> Result<Self> {
        let config: Self = toml::from_str(text)
            .map_err(|error| Error::InvalidArgument(format!("configuration {origin}: {error}")))?;
        for (key, path) in [("root", &config.root)] {
            if !path.is_absolute() {
                return Err(Error::InvalidArgument(format!(
                    "configuration {origin}: {key} = {path:?} must be an absolute path"
                )));
            }
        }
        Ok(config)
    }

    /// The default file if there is one, else the defaults.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn read_default() -> Result<Self> {
        let path = Path::new(DEFAULT_FILE);
        if path.exists() {
            Self::read(path)
        } else {
            Ok(Self::default())
        }
    }

    /// Time between two metrics events; `None` if they are off.
    pub fn metrics_interval(&self) -> Option<Duration> {
        (self.metrics_interval > 0).then(|| Duration::from_secs(self.metrics_interval))
    }

    /// Memory added to what the containers of a pod ask for.
    pub fn pod_overhead(&self) -> cgroups::Bytes {
        cgroups::Bytes(self.overhead_memory.unwrap_or(32 << 20))
    }

    /// Directory of the state of all tasks of a namespace.
    pub fn state_directory(&self, namespace: &str) -> PathBuf {
        self.root.join(namespace)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;

    use super::*;

    #[test]
    fn an_empty_file_means_the_defaults() {
        assert_eq!(Config::parse("", "test").unwrap(), Config::default());
    }

    #[test]
    fn every_key_is_read() {
        let config = Config::parse(
            r#"
            runsc = "/opt/runsc"
            root = "/run/r"
            platform = "ptrace"
            debug_log = "/var/log/rampart"
            metrics_interval = 0
            metrics_threshold = 5
            overhead_memory = 33554432
            enforce_container_memory = false
            [runsc_flags]
            overlay2 = "none"
            "#,
            "test",
        )
        .unwrap();
        assert_eq!(config.runsc, Path::new("/opt/runsc"));
        assert_eq!(config.platform, Platform::Ptrace);
        assert_eq!(config.metrics_interval(), None);
        assert_eq!(config.metrics_threshold, 5);
        assert_eq!(config.overhead_memory, Some(32 << 20));
        assert_eq!(config.runsc_flags["overlay2"], "none");
        assert!(!config.enforce_container_memory);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("runscc = 1", "runscc"),
            ("platform = \"vmx\"", "vmx"),
            ("root = \"run\"", "absolute"),
            ("metrics_interval = -1", "-1"),
            ("[", "line"),
        ] {
            let error = Config::parse(text, "/x.toml").unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("/x.toml"),
                "{text}: {error}"
            );
        }
    }

    const SAMPLE: &str = "runsc = \"/opt/runsc\"\nroot = \"/run/r\"\nplatform = \"auto\"\n\
        metrics_interval = 5\noverhead_memory = 33554432\n[runsc_flags]\nnetwork = \"host\"\n";

    proptest! {
        #[test]
        fn any_file_is_a_configuration_or_an_error_that_names_it(bytes in damaged(SAMPLE.as_bytes())) {
            match Config::parse(&String::from_utf8_lossy(&bytes), "/x.toml") {
                Ok(config) => prop_assert!(config.root.is_absolute()),
                Err(error) => prop_assert!(error.to_string().contains("/x.toml"), "{error}"),
            }
        }
    }
}
