//! Parsers of the kernel's statistics files: from text to values, without I/O.
//!
//! A line that is torn, unknown or odd is skipped; the rest of the file counts.

use std::collections::BTreeMap;

use super::{BlkioEntry, IoDevice, MemoryEvents, OomControl, Pressure, PressureLine, RdmaDevice};
use crate::units::{Bytes, Limit, Micros, Nanos};

/// Lines of `key value`.
#[must_use]
pub fn keyed(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// A single number.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A single number, or `max`.
#[must_use]
pub fn limit(text: &str) -> Option<Limit<u64>> {
    match text.trim() {
        "max" => Some(Limit::Unlimited),
        number => number.parse().ok().map(Limit::Of),
    }
}

/// A limit of version 1 in bytes, where the kernel's largest figure is none.
#[must_use]
pub fn limit_in_bytes(text: &str) -> Option<Limit<Bytes>> {
    let limit = number(text)?;
    Some(if limit < crate::limits::UNLIMITED_FROM {
        Limit::Of(Bytes(limit))
    } else {
        Limit::Unlimited
    })
}

/// `cpuacct.usage_percpu`: nanoseconds, one figure a CPU.
#[must_use]
pub fn per_cpu(text: &str) -> Vec<Nanos> {
    text.split_whitespace()
        .filter_map(|n| n.parse().ok().map(Nanos))
        .collect()
}

/// A pressure file.
#[must_use]
pub fn pressure(text: &str) -> Option<Pressure> {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("some", rest)) => pressure.some = pressure_line(rest),
            Some(("full", rest)) => pressure.full = pressure_line(rest),
            _ => {}
        }
    }
    (pressure != Pressure::default()).then_some(pressure)
}

fn pressure_line(text: &str) -> Option<PressureLine> {
    let field = |key: &str| {
        text.split_whitespace()
            .find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
    };
    let average = |key| field(key)?.parse().ok().filter(|n: &f64| n.is_finite());
    Some(PressureLine {
        avg10: average("avg10")?,
        avg60: average("avg60")?,
        avg300: average("avg300")?,
        total: Micros(field("total")?.parse().ok()?).into(),
    })
}

/// `memory.events`. A key that an older kernel does not have is 0: what it
/// counts did not happen there.
#[must_use]
pub fn memory_events(text: &str) -> Option<MemoryEvents> {
    let map = keyed(text);
    let count = |key| map.get(key).copied().unwrap_or_default();
    map.contains_key("oom_kill").then(|| MemoryEvents {
        low: count("low"),
        high: count("high"),
        max: count("max"),
        oom: count("oom"),
        oom_kill: count("oom_kill"),
        oom_group_kill: count("oom_group_kill"),
    })
}

/// `memory.oom_control`.
#[must_use]
pub fn oom_control(text: &str) -> Option<OomControl> {
    let map = keyed(text);
    Some(OomControl {
        oom_kill_disable: *map.get("oom_kill_disable")?,
        under_oom: *map.get("under_oom")?,
        oom_kill: map.get("oom_kill").copied(),
    })
}

/// `io.stat`. A device without a single figure, such as in a torn line, is
/// skipped, and so is `(unknown)`.
#[must_use]
pub fn io_stat(text: &str) -> Vec<IoDevice> {
    let device = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let (major, minor) = device_number(device)?;
        let mut io = IoDevice {
            major,
            minor,
            ..IoDevice::default()
        };
        let mut known = false;
        for (key, value) in rest.split_whitespace().filter_map(|w| w.split_once('=')) {
            let Ok(value) = value.parse() else {
                continue;
            };
            match key {
                "rbytes" => io.read_bytes = value,
                "wbytes" => io.write_bytes = value,
                "rios" => io.reads = value,
                "wios" => io.writes = value,
                _ => continue,
            }
            known = true;
        }
        known.then_some(io)
    };
    text.lines().filter_map(device).collect()
}

/// A block I/O file of version 1: `8:0 Read 123`, or `8:0 123`. The sum at the
/// end has no device and is skipped. `names` are those of [`partitions`].
#[must_use]
pub fn blkio(text: &str, names: &BTreeMap<(u32, u32), String>) -> Vec<BlkioEntry> {
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (device, op, value) = match words[..] {
            [device, op, value] => (device, op, value),
            [device, value] => (device, "", value),
            _ => return None,
        };
        let (major, minor) = device_number(device)?;
        Some(BlkioEntry {
            op: op.to_owned(),
            device: names
                .get(&(major, minor))
                .map(|n| format!("/dev/{n}"))
                .unwrap_or_default(),
            major,
            minor,
            value: value.parse().ok()?,
        })
    };
    text.lines().filter_map(entry).collect()
}

/// `/proc/partitions`: names of block devices by number.
#[must_use]
pub fn partitions(text: &str) -> BTreeMap<(u32, u32), String> {
    let partition = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(((major, minor), words.nth(1)?.to_owned()))
    };
    text.lines().filter_map(partition).collect()
}

/// `rdma.current` or `rdma.max`.
#[must_use]
pub fn rdma(text: &str) -> Vec<RdmaDevice> {
    let device = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let value = |key: &str| {
            let text = rest
                .split_whitespace()
                .find_map(|w| w.strip_prefix(key)?.strip_prefix('='))?;
            limit(text).and_then(|l| match l {
                Limit::Of(n) => u32::try_from(n).ok().map(Limit::Of),
                Limit::Unlimited => Some(Limit::Unlimited),
            })
        };
        let (hca_handles, hca_objects) = (value("hca_handle"), value("hca_object"));
        (hca_handles.is_some() || hca_objects.is_some()).then(|| RdmaDevice {
            device: device.to_owned(),
            hca_handles,
            hca_objects,
        })
    };
    text.lines().filter_map(device).collect()
}

fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn odd_lines_are_skipped() {
        let text = "252:0 \n(unknown) rbytes=1\n8:0 rbytes=10 wbytes=x rios=3 dbytes=7 dios=8 cost.usage=5\n8:16";
        let expected = IoDevice {
            major: 8,
            minor: 0,
            read_bytes: 10,
            reads: 3,
            ..IoDevice::default()
        };
        assert_eq!(io_stat(text), [expected]);

        let names = partitions("major minor  #blocks  name\n\n   8        0  1024 sda\n");
        let text = "8:0 Read 5\n8:16 Write 6\n(unknown) Read 7\n8:0 9\nTotal 27\n8:0 Read\n";
        let entries = blkio(text, &names);
        let shown: Vec<_> = entries
            .iter()
            .map(|e| (e.op.as_str(), e.device.as_str(), e.minor, e.value))
            .collect();
        assert_eq!(
            shown,
            [
                ("Read", "/dev/sda", 0, 5),
                ("Write", "", 16, 6),
                ("", "/dev/sda", 0, 9)
            ]
        );

        assert_eq!(
            keyed("anon 1\nfile\nx y\n\nshmem 2 ")
                .into_iter()
                .collect::<Vec<_>>(),
            [("anon".to_owned(), 1), ("shmem".to_owned(), 2)]
        );
    }

    #[test]
    fn unlimited_is_not_a_figure() {
        assert_eq!(limit("max\n"), Some(Limit::Unlimited));
        assert_eq!(limit("5\n"), Some(Limit::Of(5)));
        assert_eq!(
            limit_in_bytes("9223372036854771712\n"),
            Some(Limit::Unlimited)
        );
        assert_eq!(limit_in_bytes("4096\n"), Some(Limit::Of(Bytes(4096))));
        assert_eq!(limit_in_bytes(""), None);
        let rdma = rdma("mlx4_0 hca_handle=2 hca_object=max\nocrdma1 \n");
        assert_eq!(rdma.len(), 1);
        assert_eq!(rdma[0].hca_objects, Some(Limit::Unlimited));
    }

    #[test]
    fn pressure_may_be_partly_there() {
        let some = "some avg10=1.50 avg60=0.25 avg300=0.00 total=7\n";
        let pressure = pressure(some).unwrap();
        let line = PressureLine {
            avg10: 1.5,
            avg60: 0.25,
            avg300: 0.0,
            total: Nanos(7000),
        };
        assert_eq!((pressure.some, pressure.full), (Some(line), None));
        assert_eq!(super::pressure(""), None);
        assert_eq!(
            super::pressure("some avg10=nan avg60=0 avg300=0 total=1"),
            None
        );
    }

    #[test]
    fn old_kernels_have_fewer_events() {
        assert_eq!(
            memory_events("low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n")
                .unwrap()
                .oom_group_kill,
            0
        );
        assert_eq!(memory_events("low 1\n"), None);
        assert_eq!(
            oom_control("oom_kill_disable 0\nunder_oom 1\n")
                .unwrap()
                .oom_kill,
            None
        );
    }

    proptest! {
        #[test]
        fn any_text_of_statistics_is_read(text in "[a-z0-9:=. ()\n-]{0,120}") {
            let _ = (keyed(&text), pressure(&text), memory_events(&text), oom_control(&text), io_stat(&text));
            let _ = (blkio(&text, &partitions(&text)), rdma(&text), per_cpu(&text), limit(&text), limit_in_bytes(&text));
        }

        #[test]
        fn any_figures_survive(major: u32, minor: u32, figures: [u64; 4]) {
            let [rbytes, wbytes, rios, wios] = figures;
            let text = format!("{major}:{minor} rbytes={rbytes} wbytes={wbytes} rios={rios} wios={wios} dbytes=1 dios=2\n");
            let expected = IoDevice { major, minor, read_bytes: rbytes, write_bytes: wbytes, reads: rios, writes: wios };
            prop_assert_eq!(io_stat(&text), vec![expected]);
        }
    }
}
