//! What to tell systemd about a unit: names and values of properties, without
//! the D-Bus that carries them.
//!
//! A limit goes to systemd *and* to the file: a daemon-reload writes systemd's
//! values again, and systemd has no property for some files. A property that
//! the running version does not know is left out, for the whole call would
//! fail.

mod annotations;

pub use annotations::annotated_properties;

use crate::cpus::CpuSet;
use crate::error::Result;
use crate::host::Mode;
use crate::resources::{DEFAULT_PERIOD, Resources, cpu_weight, exact_per_second, fault, swap_v2};
use crate::units::{Limit, Micros};

/// The value of a property, in the type that systemd wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Property {
    /// `b`
    Bool(bool),
    /// `i`
    I32(i32),
    /// `x`
    I64(i64),
    /// `u`
    U32(u32),
    /// `t`
    U64(u64),
    /// `s`
    Str(String),
    /// `as`
    Strings(Vec<String>),
    /// `ay`
    Bytes(Vec<u8>),
}

/// Properties by name, in the order in which they are given.
pub type Properties = Vec<(String, Property)>;

/// systemd's version from its `Version` property: the first number, as in
/// `v252.5-2` or `252`.
#[must_use]
pub fn version(text: &str) -> Option<u32> {
    let digits = text.trim().trim_start_matches('"').trim_start_matches('v');
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// What every unit of ours has, beside its resources and `PIDs`.
#[must_use]
pub fn unit_properties(unit: &str, slice: &str, description: &str, mode: Mode) -> Properties {
    let mut properties = vec![(
        "Description".to_owned(),
        Property::Str(description.to_owned()),
    )];
    if unit.ends_with(".slice") {
        // A slice's parent follows from its name; it is only pulled in.
        properties.push((
            "Wants".to_owned(),
            Property::Strings(vec![slice.to_owned()]),
        ));
    } else {
        properties.push(("Slice".to_owned(), Property::Str(slice.to_owned())));
        properties.push(("Delegate".to_owned(), Property::Bool(true)));
    }
    let io = if mode == Mode::Unified {
        "IOAccounting"
    } else {
        "BlockIOAccounting"
    };
    for accounting in ["MemoryAccounting", "CPUAccounting", io, "TasksAccounting"] {
        properties.push((accounting.to_owned(), Property::Bool(true)));
    }
    properties.push(("DefaultDependencies".to_owned(), Property::Bool(false)));
    properties
}

impl Resources {
    /// The resources as properties of a unit, for systemd `version` on a host
    /// of `mode`. `creating` adds what can be set only when the unit is made.
    /// The files want [`Resources::rounded_for_systemd`] then.
    ///
    /// # Errors
    /// The resources cannot be had on such a host.
    pub fn properties(&self, version: u32, mode: Mode, creating: bool) -> Result<Properties> {
        let mut list = List {
            version,
            properties: Vec::new(),
        };
        match mode {
            Mode::Unified => self.properties_v2(&mut list, creating)?,
            Mode::Legacy | Mode::Hybrid => self.properties_v1(&mut list)?,
        }
        Ok(list.properties)
    }

    fn properties_v1(&self, list: &mut List) -> Result<()> {
        if let Some(key) = self.unified.keys().next() {
            return fault("unified", key, "it needs cgroup v2, and this host has v1");
        }
        if let Some(limit) = self.memory.limit {
            list.set("MemoryLimit", limit.or_max());
        }
        if let Some(shares) = self.cpu.shares {
            list.set("CPUShares", shares);
        }
        list.set_cpu_quota(self.cpu.quota, self.cpu.period);
        if let Some(weight) = self.block_io.weight {
            list.set("BlockIOWeight", weight.into());
        }
        if let Some(pids) = self.pids {
            list.set("TasksMax", pids.or_max());
        }
        Ok(())
    }

    fn properties_v2(&self, list: &mut List, creating: bool) -> Result<()> {
        if let Some(limit) = self.memory.limit {
            list.set("MemoryMax", limit.or_max());
        }
        if let Some(swap) = swap_v2(&self.memory)? {
            list.set("MemorySwapMax", swap.or_max());
        }
        if let Some(reservation) = self.memory.reservation {
            list.set("MemoryLow", reservation.or_max());
        }
        if self.cpu.idle == Some(true) {
            list.set_idle();
        } else if let Some(shares) = self.cpu.shares {
            list.set("CPUWeight", cpu_weight(shares));
        }
        list.set_cpu_quota(self.cpu.quota, self.cpu.period);
        if let Some(pids) = self.pids {
            list.set("TasksMax", pids.or_max());
        }
        for (lists, property) in [
            (&self.cpuset.cpus, "AllowedCPUs"),
            (&self.cpuset.mems, "AllowedMemoryNodes"),
        ] {
            if let Some(text) = lists {
                list.set_cpus("cpuset", text, property)?;
            }
        }
        for (key, value) in &self.unified {
            list.set_unified(key, value.trim(), creating)?;
        }
        Ok(())
    }
}

/// `CPUQuotaPerSecUSec`: CPU time a second, rounded up to the whole hundredths
/// of a CPU that systemd keeps.
pub(crate) fn cpu_quota_per_second(quota: Micros, period: Micros) -> Micros {
    const STEP: u64 = 10_000;
    let exact = exact_per_second(quota, period).0;
    Micros(
        exact
            .checked_next_multiple_of(STEP)
            .unwrap_or(u64::MAX - u64::MAX % STEP),
    )
}

struct List {
    version: u32,
    properties: Properties,
}

impl List {
    /// Sets a property if this systemd knows it. A later value replaces an
    /// earlier one: `unified` is applied last.
    fn put(&mut self, name: &str, value: Property) {
        if self.version < since(name) {
            return;
        }
        match self.properties.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value,
            None => self.properties.push((name.to_owned(), value)),
        }
    }

    fn set(&mut self, name: &str, value: u64) {
        self.put(name, Property::U64(value));
    }

    fn set_cpu_quota(&mut self, quota: Option<Limit<Micros>>, period: Option<Micros>) {
        if let Some(period) = period {
            self.set("CPUQuotaPeriodUSec", period.0);
        }
        match quota {
            Some(Limit::Of(quota)) => {
                self.set(
                    "CPUQuotaPerSecUSec",
                    cpu_quota_per_second(quota, period.unwrap_or(DEFAULT_PERIOD)).0,
                );
            }
            Some(Limit::Unlimited) => self.set("CPUQuotaPerSecUSec", u64::MAX),
            None if period.is_some() => self.set("CPUQuotaPerSecUSec", u64::MAX),
            None => {}
        }
    }

    /// CPUWeight=idle on the wire.
    fn set_idle(&mut self) {
        if self.version >= 252 {
            self.set("CPUWeight", 0);
        }
    }

    fn set_cpus(&mut self, key: &str, text: &str, property: &str) -> Result<()> {
        match text.parse::<CpuSet>() {
            Ok(set) => self.put(property, Property::Bytes(set.mask())),
            Err(reason) => return fault(key, text, reason),
        }
        Ok(())
    }

    /// A file of version 2 for which systemd has a property. Others are files
    /// only.
    fn set_unified(&mut self, key: &str, value: &str, creating: bool) -> Result<()> {
        let number = |max: u64| match value {
            "max" => Ok(max),
            text => match text.parse::<u64>() {
                Ok(n) => Ok(n),
                Err(_) => fault(
                    &format!("unified.{key}"),
                    text,
                    "it is a number that is not negative, or max",
                ),
            },
        };
        match key {
            "memory.min" => self.set("MemoryMin", number(u64::MAX)?),
            "memory.low" => self.set("MemoryLow", number(u64::MAX)?),
            "memory.high" => self.set("MemoryHigh", number(u64::MAX)?),
            "memory.max" => self.set("MemoryMax", number(u64::MAX)?),
            "memory.swap.max" => self.set("MemorySwapMax", number(u64::MAX)?),
            "memory.zswap.max" => self.set("MemoryZSwapMax", number(u64::MAX)?),
            "pids.max" => self.set("TasksMax", number(u64::MAX)?.max(1)),
            "cpu.weight" if !self.idle() => self.set("CPUWeight", number(u64::MAX)?),
            "cpu.idle" if number(0)? == 1 => self.set_idle(),
            "cpu.max" => self.set_cpu_max(value)?,
            "cpuset.cpus" => self.set_cpus("unified.cpuset.cpus", value, "AllowedCPUs")?,
            "cpuset.mems" => self.set_cpus("unified.cpuset.mems", value, "AllowedMemoryNodes")?,
            "memory.oom.group" if creating => {
                let policy = if number(0)? == 1 { "kill" } else { "continue" };
                self.put("OOMPolicy", Property::Str(policy.to_owned()));
            }
            _ => {}
        }
        Ok(())
    }

    fn idle(&self) -> bool {
        self.properties
            .iter()
            .any(|(n, v)| n == "CPUWeight" && *v == Property::U64(0))
    }

    fn set_cpu_max(&mut self, value: &str) -> Result<()> {
        const FAULT: &str = "it is a quota, or max, and a period";
        let mut words = value.split_whitespace();
        let (quota, period) = (words.next(), words.next());
        let period = match period.map(str::parse) {
            None => None,
            Some(Ok(0) | Err(_)) => return fault("unified.cpu.max", value, FAULT),
            Some(Ok(n)) => Some(Micros(n)),
        };
        let quota = match quota {
            Some("max") => Limit::Unlimited,
            Some(text) => match text.parse() {
                Ok(n) => Limit::Of(Micros(n)),
                Err(_) => return fault("unified.cpu.max", value, FAULT),
            },
            None => return fault("unified.cpu.max", value, FAULT),
        };
        self.set_cpu_quota(Some(quota), period);
        Ok(())
    }
}

/// The first systemd that knows a property.
fn since(property: &str) -> u32 {
    match property {
        "CPUQuotaPerSecUSec" => 213,
        "TasksMax" => 227,
        "MemoryLow" | "MemoryHigh" | "MemoryMax" => 231,
        "CPUWeight" | "MemorySwapMax" => 232,
        "MemoryMin" => 240,
        "CPUQuotaPeriodUSec" => 242,
        "AllowedCPUs" | "AllowedMemoryNodes" => 244,
        "MemoryZSwapMax" | "OOMPolicy" => 253,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::resources;

    fn shown(properties: &[(String, Property)]) -> String {
        let one = |(name, value): &(String, Property)| match value {
            Property::U64(n) => format!("{name}={n}"),
            Property::Bytes(b) => format!("{name}={b:?}"),
            Property::Str(s) => format!("{name}={s}"),
            other => format!("{name}={other:?}"),
        };
        properties.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn properties_on_v2() {
        let max = u64::MAX;
        for (json, expected) in [
            (r#"{"cpu":{"shares":4096},"memory":{"limit":134217728}}"#.to_owned(), "MemoryMax=134217728 CPUWeight=303".to_owned()),
            (r#"{"memory":{"limit":100,"swap":300,"reservation":50}}"#.into(), "MemoryMax=100 MemorySwapMax=200 MemoryLow=50".into()),
            (r#"{"memory":{"limit":-1}}"#.into(), format!("MemoryMax={max} MemorySwapMax={max}")),
            (r#"{"cpu":{"quota":123456,"period":100000}}"#.into(), "CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=1240000".into()),
            (r#"{"cpu":{"quota":100}}"#.into(), "CPUQuotaPerSecUSec=10000".into()),
            (r#"{"cpu":{"quota":-1}}"#.into(), format!("CPUQuotaPerSecUSec={max}")),
            (r#"{"cpu":{"period":50000}}"#.into(), format!("CPUQuotaPeriodUSec=50000 CPUQuotaPerSecUSec={max}")),
            (r#"{"cpu":{"cpus":"10-23","mems":"0"}}"#.into(), "AllowedCPUs=[0, 252, 255] AllowedMemoryNodes=[1]".into()),
            (r#"{"cpu":{"idle":1,"shares":512}}"#.into(), "CPUWeight=0".into()),
            (r#"{"pids":{"limit":-1}}"#.into(), format!("TasksMax={max}")),
            (r#"{"unified":{"memory.high":"max","memory.min":"5","pids.max":"0","cpu.idle":"1","cpu.weight":"7",
                "cpu.max":"50000 100000","cpuset.cpus":"8","memory.oom.group":"1","io.max":"8:0 rbps=1"}}"#.into(),
             format!("CPUWeight=0 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 AllowedCPUs=[0, 1] MemoryHigh={max} \
                MemoryMin=5 OOMPolicy=kill TasksMax=1")),
        ] {
            let properties = resources(&json).unwrap().properties(255, Mode::Unified, true).unwrap();
            assert_eq!(shown(&properties), expected, "{json}");
        }
    }

    #[test]
    fn properties_on_v1() {
        let json = r#"{"cpu":{"shares":4096,"quota":50000,"cpus":"0"},"memory":{"limit":100,"swap":200},
            "pids":{"limit":7},"blockIO":{"weight":500}}"#;
        for mode in [Mode::Legacy, Mode::Hybrid] {
            let properties = resources(json)
                .unwrap()
                .properties(247, mode, true)
                .unwrap();
            let expected = "MemoryLimit=100 CPUShares=4096 CPUQuotaPerSecUSec=500000 BlockIOWeight=500 TasksMax=7";
            assert_eq!(shown(&properties), expected);
        }
    }

    #[test]
    fn an_older_systemd_is_not_told_what_it_does_not_know() {
        let json = r#"{"cpu":{"quota":50000,"period":100000,"cpus":"0","idle":1},"unified":{"memory.oom.group":"1"}}"#;
        for (version, expected) in [
            (241, "CPUQuotaPerSecUSec=500000"),
            (243, "CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000"),
            (
                244,
                "CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 AllowedCPUs=[1]",
            ),
            (
                252,
                "CPUWeight=0 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 AllowedCPUs=[1]",
            ),
            (
                253,
                "CPUWeight=0 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 AllowedCPUs=[1] OOMPolicy=kill",
            ),
        ] {
            let properties = resources(json)
                .unwrap()
                .properties(version, Mode::Unified, true)
                .unwrap();
            assert_eq!(shown(&properties), expected, "systemd {version}");
        }
        let update = resources(json)
            .unwrap()
            .properties(253, Mode::Unified, false)
            .unwrap();
        assert!(!shown(&update).contains("OOMPolicy"));
    }

    #[test]
    fn a_bad_unified_value_is_an_error() {
        for (key, value) in [
            ("memory.max", "-1"),
            ("pids.max", "x"),
            ("cpu.max", "x 1"),
            ("cpu.max", "1 0"),
            ("cpuset.cpus", "b"),
        ] {
            let json = serde_json::json!({"unified": {key: value}}).to_string();
            let error = resources(&json)
                .unwrap()
                .properties(255, Mode::Unified, true)
                .unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn versions() {
        for (text, expected) in [
            ("252", Some(252)),
            ("v252.5-2-arch", Some(252)),
            ("\"v245.4-4ubuntu3\"", Some(245)),
            ("252 (252.39)", Some(252)),
            ("", None),
            ("v", None),
            ("-3", None),
            ("x252", None),
        ] {
            assert_eq!(version(text), expected, "{text}");
        }
    }
}
