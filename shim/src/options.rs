//! Runtime options: what containerd or a client sends along with a task, and
//! the configuration that follows from it.

use std::path::Path;

use protos::protobuf::Message as _;
use protos::protobuf::well_known_types::any::Any;
use protos::{protobuf, runtimeoptions};

use crate::config::Config;
use crate::error::{Error, Result};

/// What one task asks of the shim.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// The operator's settings.
    pub config: Config,
    /// Owner of the pipes that become the container's stdio.
    pub io_owner: (u32, u32),
}

impl Options {
    /// Understands `runtimeoptions.v1.Options` (a path or a TOML body, from
    /// the CRI plugin) and `runc.v1.Options` (from `ctr`, Docker and client
    /// programs). Nothing at all means the default configuration file.
    ///
    /// # Errors
    /// An unknown type, a message that does not decode, a faulty configuration.
    pub fn parse(any: Option<&Any>) -> Result<Self> {
        let Some(any) = any.filter(|any| !any.type_url.is_empty()) else {
            return Ok(Self {
                config: Config::read_default()?,
                io_owner: (0, 0),
            });
        };
        match type_name(any) {
            "runtimeoptions.v1.Options" => {
                let options = runtimeoptions::Options::parse_from_bytes(&any.value)
                    .map_err(undecodable(any))?;
                Ok(Self {
                    config: from_runtime_options(&options)?,
                    io_owner: (0, 0),
                })
            }
            "runc.v1.Options" | "containerd.runc.v1.Options" => {
                let options = protos::runc::Options::parse_from_bytes(&any.value)
                    .map_err(undecodable(any))?;
                let mut config = Config::read_default()?;
                if !options.binary_name.is_empty() {
                    config.runsc = options.binary_name.into();
                }
                if !options.root.is_empty() {
                    config.root = options.root.into();
                }
                Ok(Self {
                    config,
                    io_owner: (options.io_uid, options.io_gid),
                })
            }
            other => Err(Error::InvalidArgument(format!(
                "runtime options of type {other:?} are not understood: use runtimeoptions.v1.Options or runc.v1.Options"
            ))),
        }
    }
}

/// The cgroup that runc's options name for the shim itself.
pub fn shim_cgroup(any: &Any) -> Option<String> {
    if !matches!(
        type_name(any),
        "runc.v1.Options" | "containerd.runc.v1.Options"
    ) {
        return None;
    }
    let options = protos::runc::Options::parse_from_bytes(&any.value).ok()?;
    Some(options.shim_cgroup).filter(|cgroup| !cgroup.is_empty())
}

/// Whether a checkpoint's options ask that the container end with it.
pub fn checkpoint_exits(any: &Any) -> bool {
    protos::runc::CheckpointOptions::parse_from_bytes(&any.value).is_ok_and(|options| options.exit)
}

fn from_runtime_options(options: &runtimeoptions::Options) -> Result<Config> {
    if !options.config_path.is_empty() {
        return Config::read(Path::new(&options.config_path));
    }
    if options.config_body.is_empty() {
        return Config::read_default();
    }
    let body = std::str::from_utf8(&options.config_body).map_err(|_| {
        Error::InvalidArgument("the runtime options' configuration is not UTF-8".into())
    })?;
    Config::parse(body, "in the runtime options")
}

fn undecodable(any: &Any) -> impl FnOnce(protobuf::Error) -> Error {
    let what = format!("decode runtime options of type {}", type_name(any));
    move |source| Error::Message { what, source }
}

/// Type names come with or without the prefix `type.googleapis.com/`.
fn type_name(any: &Any) -> &str {
    any.type_url.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any(name: &str, message: &impl protobuf::Message) -> Any {
        Any {
            type_url: name.into(),
            value: message.write_to_bytes().unwrap(),
            ..Any::default()
        }
    }

    #[test]
    fn a_path_wins_over_a_body_and_both_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "runsc = '/from/file'").unwrap();
        let mut options = runtimeoptions::Options::new();
        options.config_body = b"runsc = '/from/body'".to_vec();
        let name = "runtimeoptions.v1.Options";
        let parsed = Options::parse(Some(&any(name, &options))).unwrap();
        assert_eq!(parsed.config.runsc, Path::new("/from/body"));
        options.config_path = file.path().to_str().unwrap().into();
        let parsed = Options::parse(Some(&any(name, &options))).unwrap();
        assert_eq!(parsed.config.runsc, Path::new("/from/file"));
        options.config_path = "/nowhere/at/all.toml".into();
        let error = Options::parse(Some(&any(name, &options))).unwrap_err();
        assert!(crate::error::chain(&error).contains("/nowhere/at/all.toml"));
    }

    #[test]
    fn runc_options_are_understood_with_both_names() {
        let mut options = protos::runc::Options::new();
        options.binary_name = "/opt/runsc".into();
        options.io_uid = 7;
        options.shim_cgroup = "/shims".into();
        for name in [
            "containerd.runc.v1.Options",
            "type.googleapis.com/runc.v1.Options",
        ] {
            let any = any(name, &options);
            let parsed = Options::parse(Some(&any)).unwrap();
            assert_eq!(parsed.config.runsc, Path::new("/opt/runsc"));
            assert_eq!(parsed.io_owner, (7, 0));
            assert_eq!(shim_cgroup(&any).as_deref(), Some("/shims"));
        }
    }

    #[test]
    fn unknown_types_and_broken_messages_are_refused() {
        for (name, value) in [("x.Options", vec![]), ("runc.v1.Options", vec![0xff])] {
            let any = Any {
                type_url: name.into(),
                value,
                ..Any::default()
            };
            let error = Options::parse(Some(&any)).unwrap_err();
            assert_eq!(
                error.code(),
                protos::ttrpc::Code::INVALID_ARGUMENT,
                "{name}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_options_or_refused(
            name in "(runtimeoptions.v1.Options|runc.v1.Options|[a-zA-Z./]{0,12})",
            value in prop::collection::vec(proptest::num::u8::ANY, 0..64),
        ) {
            let any = Any { type_url: name, value, ..Any::default() };
            let _whatever_it_says = (shim_cgroup(&any), checkpoint_exits(&any));
            if let Err(error) = Options::parse(Some(&any)) {
                prop_assert_eq!(error.code(), protos::ttrpc::Code::INVALID_ARGUMENT, "{}", error);
            }
        }

        #[test]
        fn any_body_is_read_as_it_was_sent(runsc in "/[a-z/]{1,20}", interval: u32) {
            let mut options = runtimeoptions::Options::new();
            options.config_body = format!("runsc = '{runsc}'\nmetrics_interval = {interval}").into_bytes();
            let config = Options::parse(Some(&any("runtimeoptions.v1.Options", &options))).unwrap().config;
            prop_assert_eq!(config.runsc, Path::new(&runsc));
            prop_assert_eq!(config.metrics_interval, u64::from(interval));
        }
    }
}
