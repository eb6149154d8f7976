//! The devices that a container was given, and what is known of their use.

mod cdi;
mod statistics;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use cgroups::net::Interface;
use cgroups::stats::HugePages;
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, Spec};
use protos::own::device::Statistics;
use protos::own::{Device, DeviceGroup, Devices};

/// Devices given under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    kind: String,
    vendor: String,
    name: String,
    nodes: Vec<Node>,
}

impl Group {
    /// A device of CDI, with those of its nodes that the container has.
    fn of_cdi(device: &cdi::Device, nodes: &[Node]) -> Self {
        let mut found: Vec<_> = nodes
            .iter()
            .filter(|node| device.nodes.contains(&node.path))
            .cloned()
            .collect();
        if found.is_empty() {
            found.push(Node {
                path: format!("{}/{}={}", device.vendor, device.class, device.name),
                number: None,
            });
        }
        Self {
            kind: device.class.clone(),
            vendor: device.vendor.clone(),
            name: device.name.clone(),
            nodes: found,
        }
    }
}

/// The device of CDI that a node belongs to: of those that list it, and all of
/// whose nodes the container has, the one with the fewest. (A device `all` lists
/// those of every other.)
fn whose<'a>(node: &Node, nodes: &[Node], known: &'a [cdi::Device]) -> Option<&'a cdi::Device> {
    let has = |path: &String| nodes.iter().any(|node| node.path == *path);
    known
        .iter()
        .filter(|device| device.nodes.contains(&node.path) && device.nodes.iter().all(has))
        .min_by_key(|device| device.nodes.len())
}

/// A device node; without a number for a CDI device that no specification
/// describes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    path: String,
    number: Option<Number>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    block: bool,
    major: u32,
    minor: u32,
}

/// Where CDI specifications are, and sysfs.
#[derive(Debug, Clone)]
pub struct Roots {
    cdi: Vec<PathBuf>,
    sys: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            cdi: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            sys: "/sys".into(),
        }
    }
}

impl Roots {
    /// The devices of a spec: first the groups that CDI annotations name, then
    /// those whose nodes it has as CDI's specifications list them (containerd puts
    /// devices into the spec without a word of where they come from), then every
    /// other node of `linux.devices` by itself.
    pub fn given(&self, spec: &Spec) -> Vec<Group> {
        let listed = spec
            .linux()
            .as_ref()
            .and_then(|linux| linux.devices().as_ref());
        let nodes: Vec<Node> = listed.into_iter().flatten().filter_map(node).collect();
        // They tell of nodes alone, so without any no file is read.
        let known = match nodes.is_empty() {
            true => Vec::new(),
            false => cdi::known(&self.cdi),
        };
        let mut groups: Vec<Group> = cdi::annotated(spec, &known)
            .iter()
            .map(|device| Group::of_cdi(device, &nodes))
            .collect();
        for node in &nodes {
            if groups.iter().any(|group| group.nodes.contains(node)) {
                continue;
            }
            groups.push(match whose(node, &nodes, &known) {
                Some(device) => Group::of_cdi(device, &nodes),
                None => self.alone(node),
            });
        }
        groups
    }

    /// A node that nothing is known of but what sysfs says.
    fn alone(&self, node: &Node) -> Group {
        let about = |what| self.about(node.number?, what);
        let block = node.number.is_some_and(|number| number.block);
        Group {
            kind: if block { "block" } else { "char" }.to_owned(),
            vendor: about("vendor").unwrap_or_default(),
            name: about("model").unwrap_or_else(|| node.path.clone()),
            nodes: vec![node.clone()],
        }
    }

    /// Looks up what is known now of `groups`, and of what the pod has besides;
    /// each device once.
    pub fn look_up<'a>(
        &self,
        groups: impl IntoIterator<Item = &'a Group>,
        network: &[Interface],
        hugetlb: &[HugePages],
    ) -> Devices {
        let mut seen = BTreeSet::new();
        let mut answer = Devices::new();
        for group in groups {
            let instances: Vec<_> = group
                .nodes
                .iter()
                .filter(|node| match node.number {
                    Some(number) => seen.insert((Some(number), String::new())),
                    None => seen.insert((None, node.path.clone())),
                })
                .map(|node| self.device(node))
                .collect();
            if !instances.is_empty() {
                answer.groups.push(DeviceGroup {
                    type_: group.kind.clone(),
                    vendor: group.vendor.clone(),
                    name: group.name.clone(),
                    instances,
                    ..DeviceGroup::default()
                });
            }
        }
        let of_pod = [
            (
                "network",
                network
                    .iter()
                    .map(statistics::interface)
                    .collect::<Vec<_>>(),
            ),
            (
                "hugetlb",
                hugetlb.iter().map(statistics::huge_pages).collect(),
            ),
        ];
        for (kind, instances) in of_pod {
            if !instances.is_empty() {
                answer.groups.push(DeviceGroup {
                    type_: kind.to_owned(),
                    name: "pod".to_owned(),
                    instances,
                    ..DeviceGroup::default()
                });
            }
        }
        answer
    }

    fn device(&self, node: &Node) -> Device {
        let statistics = match node.number {
            None => Err(
                "no specification under /etc/cdi or /var/run/cdi lists a device node of it \
                 that the container has"
                    .to_owned(),
            ),
            Some(number) if !number.block => {
                Err("the kernel keeps no statistics of character devices".to_owned())
            }
            Some(number) => {
                let path = self.directory(number).join("stat");
                match fs::read_to_string(&path) {
                    Ok(text) => statistics::block(&text)
                        .ok_or_else(|| format!("{} has an unknown form", path.display())),
                    Err(error) => Err(format!("{}: {error}", path.display())),
                }
            }
        };
        let number = node.number.unwrap_or(Number {
            block: false,
            major: 0,
            minor: 0,
        });
        Device {
            id: node.path.clone(),
            major: number.major,
            minor: number.minor,
            statistics: Some(match statistics {
                Ok(statistics) => Statistics::Block(statistics),
                Err(reason) => Statistics::Missing(reason),
            }),
            ..Device::default()
        }
    }

    fn directory(&self, number: Number) -> PathBuf {
        let kind = if number.block { "block" } else { "char" };
        self.sys
            .join(format!("dev/{kind}/{}:{}", number.major, number.minor))
    }

    /// What sysfs says of a device, or of the disk that a partition is of.
    fn about(&self, number: Number, what: &str) -> Option<String> {
        let directory = fs::canonicalize(self.directory(number)).ok()?;
        [Some(directory.as_path()), directory.parent()]
            .into_iter()
            .flatten()
            .find_map(|directory| fs::read_to_string(directory.join("device").join(what)).ok())
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
    }
}

fn node(device: &LinuxDevice) -> Option<Node> {
    let block = match device.typ() {
        LinuxDeviceType::B => true,
        LinuxDeviceType::C | LinuxDeviceType::U => false,
        LinuxDeviceType::P | LinuxDeviceType::A => return None,
    };
    Some(Node {
        path: device.path().display().to_string(),
        number: Some(Number {
            block,
            major: device.major().try_into().ok()?,
            minor: device.minor().try_into().ok()?,
        }),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A sysfs with one disk and a directory of CDI specifications.
    fn roots(directory: &Path) -> Roots {
        let disk = directory.join("sys/dev/block/8:0");
        fs::create_dir_all(disk.join("device")).unwrap();
        fs::write(disk.join("stat"), "  10 1 20 3 40 5 60 7 8 9 10 0 0 0 0\n").unwrap();
        fs::write(disk.join("device/vendor"), "ACME    \n").unwrap();
        fs::write(disk.join("device/model"), "Drive 9\n").unwrap();
        let cdi = directory.join("cdi");
        fs::create_dir(&cdi).unwrap();
        let text = r#"{"cdiVersion":"0.6.0","kind":"acme.com/gpu","devices":[
            {"name":"all","containerEdits":{"deviceNodes":[{"path":"/dev/gpu0"},{"path":"/dev/sda"},{"path":"/dev/gpu1"}]}},
            {"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/gpu0"},{"path":"/dev/sda"}]}},
            {"name":"1","containerEdits":{"deviceNodes":[{"path":"/dev/gpu1"}]}}]}"#;
        fs::write(cdi.join("acme.json"), text).unwrap();
        fs::write(cdi.join("broken.json"), "{").unwrap();
        Roots {
            cdi: vec![cdi, directory.join("absent")],
            sys: directory.join("sys"),
        }
    }

    fn spec(annotations: &str, devices: &str) -> Spec {
        let text = format!(
            r#"{{"ociVersion":"1.0.2","annotations":{{{annotations}}},"linux":{{"devices":[{devices}]}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const SDA: &str = r#"{"path":"/dev/sda","type":"b","major":8,"minor":0}"#;
    const GPU0: &str = r#"{"path":"/dev/gpu0","type":"c","major":195,"minor":0}"#;
    const GPU1: &str = r#"{"path":"/dev/gpu1","type":"c","major":195,"minor":1}"#;
    const FUSE: &str = r#"{"path":"/dev/fuse","type":"c","major":10,"minor":229}"#;
    const GONE: &str = r#"{"path":"/dev/sdz","type":"b","major":8,"minor":255}"#;

    #[test]
    fn groups_are_told_by_cdi_and_by_sysfs_and_each_device_is_there_once() {
        let directory = tempfile::tempdir().unwrap();
        let roots = roots(directory.path());
        let first = spec(
            r#""cdi.k8s.io/a":"acme.com/gpu=0, other.com/net=x""#,
            &[GPU0, FUSE, SDA].join(","),
        );
        let second = spec("", &[SDA, GONE, FUSE].join(","));
        let given = [roots.given(&first), roots.given(&second)].concat();
        let answer = roots.look_up(&given, &[], &[]);
        let told: Vec<_> = answer
            .groups
            .iter()
            .map(|group| {
                let ids: Vec<_> = group.instances.iter().map(|one| one.id.as_str()).collect();
                (
                    group.type_.as_str(),
                    group.vendor.as_str(),
                    group.name.as_str(),
                    ids,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ("gpu", "acme.com", "0", vec!["/dev/gpu0", "/dev/sda"]),
                ("net", "other.com", "x", vec!["other.com/net=x"]),
                ("char", "", "/dev/fuse", vec!["/dev/fuse"]),
                ("block", "", "/dev/sdz", vec!["/dev/sdz"]),
            ]
        );
        let reasons: Vec<_> = answer
            .groups
            .iter()
            .flat_map(|group| &group.instances)
            .map(Device::missing)
            .collect();
        assert!(reasons[0].contains("character"), "{reasons:?}");
        assert_eq!(reasons[1], "", "a disk has statistics");
        assert!(reasons[2].contains("cdi"), "{reasons:?}");
        assert!(reasons[4].contains("8:255"), "{reasons:?}");
        let disk = answer.groups[0].instances[1].block();
        assert_eq!((disk.reads, disk.read_bytes), (10, 20 * 512));
        assert_eq!((disk.writes, disk.written_bytes), (40, 60 * 512));
        assert_eq!((disk.in_flight, disk.busy_milliseconds), (8, 9));
    }

    #[test]
    fn what_was_given_without_an_annotation_is_found_by_its_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let roots = roots(directory.path());
        let told = |devices: &[&str]| -> Vec<String> {
            roots
                .given(&spec("", &devices.join(",")))
                .iter()
                .map(|group| format!("{} {} {}", group.vendor, group.kind, group.name))
                .collect()
        };
        assert_eq!(told(&[GPU0, SDA]), ["acme.com gpu 0"]);
        assert_eq!(
            told(&[GPU1, GPU0, SDA]),
            ["acme.com gpu 1", "acme.com gpu 0"]
        );
        // A part of a device is not the device.
        assert_eq!(told(&[GPU0]), [" char /dev/gpu0"]);
    }

    #[test]
    fn a_disk_alone_is_named_by_sysfs() {
        let directory = tempfile::tempdir().unwrap();
        let roots = roots(directory.path());
        let groups = roots.given(&spec("", SDA));
        let group = &groups[0];
        assert_eq!(
            (
                group.kind.as_str(),
                group.vendor.as_str(),
                group.name.as_str()
            ),
            ("block", "ACME", "Drive 9")
        );
    }

    #[test]
    fn a_pod_has_its_interfaces_and_huge_pages() {
        let eth0 = Interface {
            name: "eth0".into(),
            rx_bytes: 7,
            tx_dropped: 2,
            ..Interface::default()
        };
        let pages = HugePages {
            size: "2MB".into(),
            usage: Some(cgroups::Bytes(4096)),
            ..HugePages::default()
        };
        let answer = Roots::default().look_up(&[], &[eth0], &[pages]);
        let [network, hugetlb] = &answer.groups[..] else {
            panic!("{answer}")
        };
        let eth0 = &network.instances[0];
        assert_eq!(
            (network.type_.as_str(), eth0.id.as_str()),
            ("network", "eth0")
        );
        assert_eq!(
            (eth0.network().received_bytes, eth0.network().send_dropped),
            (7, 2)
        );
        let pages = hugetlb.instances[0].huge_pages();
        assert_eq!((pages.usage, pages.limit), (4096, u64::MAX));
    }
}
