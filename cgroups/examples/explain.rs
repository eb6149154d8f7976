//! Tells, as JSON, where a container's cgroup would be and what would be
//! written there, without touching anything.
//!
//! ```text
//! explain config.json --mode legacy|hybrid|unified [--systemd VERSION] [--rootless]
//!         [--id ID] [--own-cgroup PATH] [--root DIR]
//! ```
//!
//! The answer is `{"path", "unit", "slice", "files", "properties"}`: the path
//! below each hierarchy's mount, the files with their values in writing order,
//! and, if systemd is to make the cgroup, the unit with its properties (`unit`
//! and `slice` are null otherwise). What cannot be done is `{"error"}` and exit
//! status 1; wrong arguments are exit status 2.
//!
//! `--own-cgroup` (the root by default) is what relative paths are relative to.
//! `--root` is a `/sys/fs/cgroup` to look into for files that not every kernel
//! has (`io.bfq.weight`, `blkio.weight`); without it the plain names are taken.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cgroups::systemd::{self, Property};
use cgroups::{CgroupPath, Mode, Origin, Resources};
use oci_spec::runtime::LinuxResources;
use serde_json::{Value, json};

const USAGE: &str = "usage: explain config.json --mode legacy|hybrid|unified [--systemd VERSION] [--rootless] \
    [--id ID] [--own-cgroup PATH] [--root DIR]";

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args_os().skip(1)) {
        Ok(arguments) => arguments,
        Err(fault) => {
            let _ = writeln!(std::io::stderr(), "explain: {fault}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (answer, status) = match explain(&arguments) {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(error) => (json!({ "error": error.to_string() }), ExitCode::FAILURE),
    };
    match writeln!(std::io::stdout(), "{answer}") {
        Ok(()) => status,
        Err(_) => ExitCode::FAILURE,
    }
}

fn explain(arguments: &Arguments) -> Result<Value, Box<dyn std::error::Error>> {
    let config = read_config(&arguments.config)?;
    let linux = &config["linux"];
    if !linux.is_null() && !linux.is_object() {
        return Err("linux: it is an object".into());
    }
    let cgroups_path = match &linux["cgroupsPath"] {
        Value::Null => None,
        Value::String(path) => Some(path.as_str()),
        other => return Err(format!("linux.cgroupsPath: {other} is no string").into()),
    };
    let resources = match &linux["resources"] {
        Value::Null => Resources::default(),
        given => {
            let mut given = given.clone();
            // The type cannot tell a limit that is not there from 0.
            if given["pids"].is_object()
                && given["pids"]["limit"].is_null()
                && let Some(resources) = given.as_object_mut()
            {
                resources.remove("pids");
            }
            let spec: LinuxResources =
                serde_json::from_value(given).map_err(|e| format!("linux.resources: {e}"))?;
            Resources::try_from(&spec)?
        }
    };
    let annotations: HashMap<String, String> = match &config["annotations"] {
        Value::Null => HashMap::new(),
        given => serde_json::from_value(given.clone()).map_err(|e| format!("annotations: {e}"))?,
    };

    let path = CgroupPath::parse(cgroups_path, &arguments.id, &arguments.origin)?;
    let exists = |file: &str| arguments.exists(path.path(), file);
    let files = |resources: &Resources| match arguments.origin.mode {
        Mode::Unified => resources.files_v2(exists),
        Mode::Legacy | Mode::Hybrid => resources.files_v1(exists),
    };
    let CgroupPath::Unit { slice, unit, path } = &path else {
        return Ok(json!({
            "path": path.path(), "unit": null, "slice": null, "files": files(&resources)?, "properties": {},
        }));
    };
    let mode = arguments.origin.mode;
    let mut properties =
        systemd::unit_properties(unit, slice, &format!("container {}", arguments.id), mode);
    properties.extend(resources.properties(arguments.systemd.unwrap_or_default(), mode, true)?);
    properties.extend(systemd::annotated_properties(&annotations)?);
    let properties: serde_json::Map<String, Value> = properties
        .into_iter()
        .map(|(name, value)| (name, json_of(value)))
        .collect();
    let files = files(&resources.rounded_for_systemd())?;
    Ok(
        json!({ "path": path, "unit": unit, "slice": slice, "files": files, "properties": properties }),
    )
}

fn read_config(path: &Path) -> Result<Value, String> {
    let text =
        std::fs::read_to_string(path).map_err(|e| format!("read {}: {e}", path.display()))?;
    match serde_json::from_str(&text) {
        Ok(config @ Value::Object(_)) => Ok(config),
        Ok(_) => Err(format!(
            "{}: an OCI config is a JSON object",
            path.display()
        )),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

fn json_of(property: Property) -> Value {
    match property {
        Property::Bool(value) => json!(value),
        Property::I32(value) => json!(value),
        Property::I64(value) => json!(value),
        Property::U32(value) => json!(value),
        Property::U64(value) => json!(value),
        Property::Str(value) => json!(value),
        Property::Strings(value) => json!(value),
        Property::Bytes(value) => json!(value),
    }
}

struct Arguments {
    config: PathBuf,
    origin: Origin,
    systemd: Option<u32>,
    id: String,
    root: Option<PathBuf>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut rootless = false;
        let mut given: HashMap<String, String> = HashMap::new();
        while let Some(word) = words.next() {
            let word = word
                .into_string()
                .map_err(|w| format!("{w:?} is not UTF-8"))?;
            let (name, value) = match word.as_str() {
                "--rootless" if rootless => return Err("--rootless is given twice".to_owned()),
                "--rootless" => {
                    rootless = true;
                    continue;
                }
                "--mode" | "--systemd" | "--id" | "--own-cgroup" | "--root" => {
                    let value = words
                        .next()
                        .ok_or_else(|| format!("{word} wants a value"))?;
                    (
                        word,
                        value
                            .into_string()
                            .map_err(|w| format!("{w:?} is not UTF-8"))?,
                    )
                }
                option if option.starts_with('-') => return Err(format!("{option} is no option")),
                _ => ("config.json".to_owned(), word),
            };
            if given.contains_key(&name) {
                return Err(format!("{name} is given twice"));
            }
            given.insert(name, value);
        }

        let mode = match given.remove("--mode").as_deref() {
            Some("legacy") => Mode::Legacy,
            Some("hybrid") => Mode::Hybrid,
            Some("unified") => Mode::Unified,
            Some(other) => return Err(format!("--mode {other}: it is legacy, hybrid or unified")),
            None => return Err("--mode is missing".to_owned()),
        };
        let systemd = match given.remove("--systemd").as_deref() {
            None | Some("none") => None,
            Some(text) => Some(
                systemd::version(text)
                    .ok_or_else(|| format!("--systemd {text}: it is a version"))?,
            ),
        };
        let own_cgroup = PathBuf::from(
            given
                .remove("--own-cgroup")
                .unwrap_or_else(|| "/".to_owned()),
        );
        if !own_cgroup.is_absolute() {
            return Err(format!(
                "--own-cgroup {}: it is an absolute path",
                own_cgroup.display()
            ));
        }
        Ok(Self {
            config: given
                .remove("config.json")
                .ok_or("the config is missing")?
                .into(),
            origin: Origin {
                mode,
                own_cgroup,
                systemd: systemd.is_some(),
                rootless,
            },
            systemd,
            id: given.remove("--id").unwrap_or_default(),
            root: given.remove("--root").map(PathBuf::from),
        })
    }

    /// Whether the cgroup at `path` would have `file`: whether one above it
    /// that is there has it.
    fn exists(&self, path: &Path, file: &str) -> bool {
        let Some(root) = &self.root else {
            return file == "blkio.weight";
        };
        let mount = match self.origin.mode {
            Mode::Unified => root.clone(),
            Mode::Legacy | Mode::Hybrid => root.join("blkio"),
        };
        path.ancestors().any(|a| {
            mount
                .join(a.strip_prefix("/").unwrap_or(a))
                .join(file)
                .exists()
        })
    }
}
