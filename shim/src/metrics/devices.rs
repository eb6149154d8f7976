//! The devices that a container was given, and what is known of their use.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cgroups::net::Interface;
use cgroups::stats::HugePages;
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, Spec};
use protos::own::device::Statistics;
use protos::own::{
    BlockStatistics, Device, DeviceGroup, Devices, HugePageStatistics, NetworkStatistics,
};
use serde::Deserialize;

/// Devices given under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    kind: String,
    vendor: String,
    name: String,
    nodes: Vec<Node>,
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
    /// The devices of a spec: first the groups that CDI annotations name, with
    /// the nodes that their specifications list, then every other node of
    /// `linux.devices` by itself.
    pub fn given(&self, spec: &Spec) -> Vec<Group> {
        let listed = spec
            .linux()
            .as_ref()
            .and_then(|linux| linux.devices().as_ref());
        let nodes: Vec<Node> = listed.into_iter().flatten().filter_map(node).collect();
        let mut groups = Vec::new();
        for name in cdi_names(spec) {
            let Some((kind, device)) = name.split_once('=') else {
                continue;
            };
            let (vendor, class) = kind.split_once('/').unwrap_or(("", kind));
            let paths = self.cdi_paths(kind, device);
            let mut found: Vec<_> = nodes
                .iter()
                .filter(|node| paths.contains(&node.path))
                .cloned()
                .collect();
            if found.is_empty() {
                found.push(Node {
                    path: name.clone(),
                    number: None,
                });
            }
            groups.push(Group {
                kind: class.to_owned(),
                vendor: vendor.to_owned(),
                name: device.to_owned(),
                nodes: found,
            });
        }
        for node in nodes {
            if groups.iter().any(|group| group.nodes.contains(&node)) {
                continue;
            }
            let Some(number) = node.number else { continue };
            groups.push(Group {
                kind: if number.block { "block" } else { "char" }.to_owned(),
                vendor: self.about(number, "vendor").unwrap_or_default(),
                name: self
                    .about(number, "model")
                    .unwrap_or_else(|| node.path.clone()),
                nodes: vec![node],
            });
        }
        groups
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
            ("network", network.iter().map(interface).collect::<Vec<_>>()),
            ("hugetlb", hugetlb.iter().map(huge_pages).collect()),
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
                "no specification in JSON under /etc/cdi or /var/run/cdi lists a device \
                         node of it that the container has"
                    .to_owned(),
            ),
            Some(number) if !number.block => {
                Err("the kernel keeps no statistics of character devices".to_owned())
            }
            Some(number) => {
                let path = self.directory(number).join("stat");
                match fs::read_to_string(&path) {
                    Ok(text) => block(&text)
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

    /// The nodes that CDI's specifications list for a device, as the container
    /// sees them.
    fn cdi_paths(&self, kind: &str, device: &str) -> Vec<String> {
        let files = self
            .cdi
            .iter()
            .filter_map(|directory| fs::read_dir(directory).ok());
        files
            .flatten()
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|end| end == "json"))
            .filter_map(|entry| read_cdi(&entry.path()))
            .filter(|specification| specification.kind == kind)
            .flat_map(|specification| specification.devices)
            .filter(|found| found.name == device)
            .flat_map(|found| found.container_edits.device_nodes)
            .map(|node| node.path)
            .collect()
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

/// The qualified names, `vendor/class=device`, in the annotations whose keys
/// begin with `cdi.k8s.io/` (CDI, "Annotations"); in the order of the keys.
fn cdi_names(spec: &Spec) -> Vec<String> {
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
        .map(|name| name.trim().to_owned())
        .collect()
}

/// A CDI specification, as far as it is looked at.
#[derive(Debug, Deserialize)]
struct Cdi {
    kind: String,
    #[serde(default)]
    devices: Vec<CdiDevice>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdiDevice {
    name: String,
    #[serde(default)]
    container_edits: CdiEdits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdiEdits {
    #[serde(default)]
    device_nodes: Vec<CdiNode>,
}

#[derive(Debug, Deserialize)]
struct CdiNode {
    path: String,
}

fn read_cdi(path: &Path) -> Option<Cdi> {
    let text = fs::read_to_string(path).ok()?;
    match serde_json::from_str(&text) {
        Ok(specification) => Some(specification),
        Err(error) => {
            log::debug!("CDI specification {}: {error}", path.display());
            None
        }
    }
}

/// The text of a block device's `stat`; see the kernel's
/// Documentation/block/stat.rst. Its sectors have 512 bytes on every device.
fn block(text: &str) -> Option<BlockStatistics> {
    let fields: Vec<u64> = text
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let [
        reads,
        _,
        read_sectors,
        read_milliseconds,
        writes,
        _,
        written_sectors,
        write_milliseconds,
        in_flight,
        busy_milliseconds,
        ..,
    ] = fields[..]
    else {
        return None;
    };
    Some(BlockStatistics {
        reads,
        writes,
        read_bytes: read_sectors.saturating_mul(512),
        written_bytes: written_sectors.saturating_mul(512),
        read_milliseconds,
        write_milliseconds,
        in_flight,
        busy_milliseconds,
        ..BlockStatistics::default()
    })
}

fn interface(interface: &Interface) -> Device {
    Device {
        id: interface.name.clone(),
        statistics: Some(Statistics::Network(NetworkStatistics {
            received_bytes: interface.rx_bytes,
            received_packets: interface.rx_packets,
            receive_errors: interface.rx_errors,
            receive_dropped: interface.rx_dropped,
            sent_bytes: interface.tx_bytes,
            sent_packets: interface.tx_packets,
            send_errors: interface.tx_errors,
            send_dropped: interface.tx_dropped,
            ..NetworkStatistics::default()
        })),
        ..Device::default()
    }
}

fn huge_pages(pages: &HugePages) -> Device {
    Device {
        id: pages.size.clone(),
        statistics: Some(Statistics::HugePages(HugePageStatistics {
            usage: pages.usage.map_or(0, |usage| usage.0),
            most: pages.max_usage.map_or(0, |most| most.0),
            limit: pages.limit.map_or(u64::MAX, |limit| limit.or_max()),
            failures: pages.failcnt.unwrap_or(0),
            ..HugePageStatistics::default()
        })),
        ..Device::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn any_text_of_stat_is_read(text in "[0-9 a\n]{0,80}") {
            let _ = block(&text);
        }
    }
}
