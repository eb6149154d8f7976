//! CDI: the devices that this host's specifications describe, and the names of
//! those that a container was given.
//!
//! See the Container Device Interface, `SPEC.md`: a device is named
//! `vendor/class=name`; files in YAML or JSON list the nodes of each.

use std::fs;
use std::path::{Path, PathBuf};

use oci_spec::runtime::Spec;
use saphyr::{LoadableYamlNode as _, Yaml};

/// A device as it is named, with the nodes that a container gets with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) vendor: String,
    pub(super) class: String,
    pub(super) name: String,
    /// Their paths in the container.
    pub(super) nodes: Vec<String>,
}

impl Device {
    /// The device of a qualified name, as far as the name tells.
    fn named(name: &str) -> Option<Self> {
        let (kind, name) = name.split_once('=')?;
        let (vendor, class) = kind.split_once('/')?;
        Some(Self {
            vendor: vendor.to_owned(),
            class: class.to_owned(),
            name: name.to_owned(),
            nodes: Vec::new(),
        })
    }

    fn is_named_as(&self, other: &Self) -> bool {
        (&self.vendor, &self.class, &self.name) == (&other.vendor, &other.class, &other.name)
    }
}

/// The devices that annotations name (those whose keys begin with `cdi.k8s.io/`,
/// in the order of the keys), with their nodes as far as they are `known`.
pub(super) fn annotated(spec: &Spec, known: &[Device]) -> Vec<Device> {
    let mut annotations: Vec<_> = spec
        .annotations()
        .iter()
        .flatten()
        .filter(|(key, _)| key.starts_with("cdi.k8s.io/"))
        .collect();
    annotations.sort();
    annotations
        .iter()
        .flat_map(|(_, names)| names.split(','))
        .filter_map(|name| Device::named(name.trim()))
        .map(|named| {
            let found = known.iter().find(|device| device.is_named_as(&named));
            found.cloned().unwrap_or(named)
        })
        .collect()
}

/// The devices that the files of `directories` describe. A later directory has
/// precedence, so its devices come first; else they come in the files' order.
pub(super) fn known(directories: &[PathBuf]) -> Vec<Device> {
    directories
        .iter()
        .rev()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flat_map(|entries| {
            let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            paths.sort();
            paths
        })
        .filter(|path| {
            path.extension()
                .is_some_and(|end| end == "json" || end == "yaml")
        })
        .flat_map(|path| read(&path))
        .collect()
}

/// Reads one file; JSON is YAML too. One that cannot be understood has none.
fn read(path: &Path) -> Vec<Device> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            log::debug!("CDI specification {}: {error}", path.display());
            return Vec::new();
        }
    };
    match Yaml::load_from_str(&text) {
        Ok(documents) => documents.first().and_then(devices).unwrap_or_default(),
        Err(error) => {
            log::debug!("CDI specification {}: {error}", path.display());
            Vec::new()
        }
    }
}

fn devices(specification: &Yaml<'_>) -> Option<Vec<Device>> {
    let kind = specification.as_mapping_get("kind")?.as_str()?;
    let listed = specification.as_mapping_get("devices")?.as_vec()?;
    let device = |device: &Yaml<'_>| {
        let name = device.as_mapping_get("name")?.as_str()?;
        let edits = device.as_mapping_get("containerEdits");
        let nodes = edits.and_then(|edits| edits.as_mapping_get("deviceNodes")?.as_vec());
        let path = |node: &Yaml<'_>| Some(node.as_mapping_get("path")?.as_str()?.to_owned());
        Some(Device {
            nodes: nodes.into_iter().flatten().filter_map(path).collect(),
            ..Device::named(&format!("{kind}={name}"))?
        })
    };
    Some(listed.iter().filter_map(device).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(name: &str, nodes: &[&str]) -> Device {
        Device {
            nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
            ..Device::named(name).unwrap()
        }
    }

    fn of(text: &str) -> Vec<Device> {
        let documents = Yaml::load_from_str(text).unwrap_or_default();
        documents.first().and_then(devices).unwrap_or_default()
    }

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = "
cdiVersion: 0.5.0
kind: acme.com/gpu
containerEdits:
  deviceNodes:
  - path: /dev/acmectl
devices:
- name: \"0\"
  containerEdits:
    deviceNodes:
    - path: /dev/gpu0
      hostPath: /dev/acme/0
    - {path: /dev/render0, permissions: rw}
- name: nothing
  containerEdits:
    env: [A=b]
";
        let json = r#"{"cdiVersion": "0.5.0", "kind": "acme.com/gpu", "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [
                {"path": "/dev/gpu0", "hostPath": "/dev/acme/0"}, {"path": "/dev/render0"}]}},
            {"name": "nothing", "containerEdits": {"env": ["A=b"]}}]}"#;
        let expected = [
            device("acme.com/gpu=0", &["/dev/gpu0", "/dev/render0"]),
            device("acme.com/gpu=nothing", &[]),
        ];
        assert_eq!(of(yaml), expected);
        assert_eq!(of(json), expected);
    }

    #[test]
    fn what_is_no_specification_has_no_devices() {
        for text in [
            "",
            "{",
            "- a",
            "kind: acme.com/gpu",
            "kind: gpu\ndevices: [{name: a}]",
            "kind: acme.com/gpu\ndevices: [1, {name: 2}]",
        ] {
            assert_eq!(of(text), [], "{text:?}");
        }
    }

    #[test]
    fn the_later_directory_has_precedence() {
        let directory = tempfile::tempdir().unwrap();
        let roots = ["etc", "run", "absent"].map(|name| directory.path().join(name));
        for (root, node) in [(&roots[0], "/dev/old"), (&roots[1], "/dev/new")] {
            fs::create_dir(root).unwrap();
            let text = format!(
                "kind: a.b/c\ndevices: [{{name: d, containerEdits: {{deviceNodes: [{{path: {node}}}]}}}}]"
            );
            fs::write(root.join("a.yaml"), text).unwrap();
            fs::write(root.join("b.txt"), "kind: a.b/c\ndevices: [{name: e}]").unwrap();
        }
        let known = known(&roots);
        assert_eq!(
            known,
            [
                device("a.b/c=d", &["/dev/new"]),
                device("a.b/c=d", &["/dev/old"])
            ]
        );
        let spec = r#"{"ociVersion":"1.0.2","annotations":
            {"cdi.k8s.io/z":"a.b/c=unknown, no name","cdi.k8s.io/a":"a.b/c=d","other":"a.b/c=e"}}"#;
        assert_eq!(
            annotated(&serde_json::from_str(spec).unwrap(), &known),
            [
                device("a.b/c=d", &["/dev/new"]),
                device("a.b/c=unknown", &[])
            ]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9:\\-\\[\\]{}&*!\n ]{0,80}") {
            let _ = of(&text);
        }
    }
}
