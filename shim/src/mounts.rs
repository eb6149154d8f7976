//! Mount options of the spec, in words that runsc knows.

use oci_spec::runtime::Spec;

/// Says `ro` where the spec says `rro`. In the sandbox a bind mount is one file
/// system, whatever is mounted below its source on the host, so a read-only one
/// is read-only throughout; `rro` itself runsc would take for the file system's.
pub fn translate(spec: &mut Spec) {
    for mount in spec.mounts_mut().iter_mut().flatten() {
        for option in mount.options_mut().iter_mut().flatten() {
            if option == "rro" {
                "ro".clone_into(option);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recursive_read_only_is_read_only() {
        let mut spec: Spec = serde_json::from_value(serde_json::json!({
            "ociVersion": "1.0.2",
            "mounts": [
                {"destination": "/a", "options": ["rbind", "rro", "rprivate"]},
                {"destination": "/b", "options": ["ro", "nosuid"]},
                {"destination": "/c"},
            ],
        }))
        .unwrap();
        translate(&mut spec);
        let options: Vec<_> = spec
            .mounts()
            .iter()
            .flatten()
            .map(|mount| mount.options().clone().unwrap_or_default().join(","))
            .collect();
        assert_eq!(options, ["rbind,ro,rprivate", "ro,nosuid", ""]);
    }
}
