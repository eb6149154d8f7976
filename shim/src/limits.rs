//! The limits of a pod, of which runsc's sandbox is one process group.
//!
//! A lone container gets what its spec says, to the byte. In a pod the sandbox
//! container's spec says next to nothing (`cpu.shares = 2`), while everything
//! runs in its cgroup: there the pod's own figures count, from the annotations
//! of the CRI plugin, else the sum of the containers', and whatever already
//! binds from above is written there too, because a sandbox sizes itself by its
//! own cgroup alone.

use cgroups::{Bytes, Cgroup, Limit, Micros, Resources};
use oci_spec::runtime::{LinuxResources, Spec};

use crate::bundle::annotation;
use crate::config::Config;
use crate::error::{Error, Result};

/// Memory that the sandbox needs to start at all: below that nothing runs, and
/// the kernel would kill it on the way.
pub const SANDBOX_NEEDS: Bytes = Bytes(20 << 20);

/// Threads that the sandbox needs: with fewer the sentry dies of it.
pub const SANDBOX_THREADS: u64 = 40;

/// Which limits of a sandbox follow its containers, because nobody has said
/// what the pod as a whole gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FollowsContainers {
    /// Memory.
    pub memory: bool,
    /// CPU time.
    pub cpu: bool,
}

/// The spec's resources, typed.
///
/// # Errors
/// They contradict each other.
pub fn of_spec(spec: &Spec) -> Result<Resources> {
    of_linux(
        spec.linux()
            .as_ref()
            .and_then(|linux| linux.resources().as_ref()),
    )
}

/// Resources of the OCI spec, typed.
///
/// # Errors
/// They contradict each other.
pub fn of_linux(resources: Option<&LinuxResources>) -> Result<Resources> {
    Ok(match resources {
        Some(resources) => Resources::try_from(resources)?,
        None => Resources::default(),
    })
}

/// Whether the spec is that of a pod's sandbox container.
pub fn is_pod(spec: &Spec) -> bool {
    let kinds = [
        "io.kubernetes.cri.container-type",
        "io.kubernetes.cri-o.ContainerType",
    ];
    annotation(spec, &kinds) == Some("sandbox")
}

/// The limits of a sandbox's cgroup, when its container is created.
///
/// # Errors
/// A figure that is none, or a limit in which no sandbox can run.
pub fn of_sandbox(
    spec: &Spec,
    config: &Config,
    cgroup: &Cgroup,
) -> Result<(Resources, FollowsContainers)> {
    let mut resources = of_spec(spec)?;
    let mut follows = FollowsContainers::default();
    if is_pod(spec) {
        let figure = |name: &str| -> Result<Option<u64>> {
            let key = format!("io.kubernetes.cri.sandbox-{name}");
            let Some(text) = annotation(spec, &[&key]) else {
                return Ok(None);
            };
            // 0 stands for "not given"; a negative quota for "none".
            match text.parse::<i64>() {
                Ok(figure) => Ok(u64::try_from(figure).ok().filter(|figure| *figure > 0)),
                Err(_) => Err(Error::InvalidArgument(format!(
                    "annotation {key} is {text:?}, which is no number"
                ))),
            }
        };
        if let Some(shares) = figure("cpu-shares")? {
            resources.cpu.shares = Some(shares);
        }
        if let Some(period) = figure("cpu-period")? {
            resources.cpu.period = Some(Micros(period));
        }
        if let Some(quota) = figure("cpu-quota")? {
            resources.cpu.quota = Some(Limit::Of(Micros(quota)));
        }
        if let Some(memory) = figure("memory")? {
            let limit = memory.saturating_add(config.pod_overhead().0);
            resources.memory.limit = Some(Limit::Of(Bytes(limit)));
        }
        follows.memory = resources.memory.limit.is_none();
        follows.cpu = resources.cpu.quota.is_none();
        bind(&mut resources, cgroup);
    } else {
        if let (Some(Limit::Of(limit)), Some(overhead)) =
            (resources.memory.limit, config.overhead_memory)
        {
            resources.memory.limit = Some(Limit::Of(Bytes(limit.0.saturating_add(overhead))));
        }
        bind_lone(&mut resources, cgroup);
    }
    check(&resources, config)?;
    Ok((resources, follows))
}

/// The limits of a pod's sandbox cgroup for its containers together: the sum,
/// where each has one, else none.
pub fn of_containers(
    asked: &[Resources],
    follows: FollowsContainers,
    config: &Config,
    cgroup: &Cgroup,
) -> Resources {
    let mut resources = Resources::default();
    if follows.memory {
        let sum = sum(asked, |one| Some(one.memory.limit?.value()?.0));
        resources.memory.limit = Some(match sum {
            Some(sum) => Limit::Of(Bytes(sum.saturating_add(config.pod_overhead().0))),
            None => Limit::Unlimited,
        });
        bind(&mut resources, cgroup);
        resources.memory.swap = swap_of(asked, resources.memory.limit, config);
    }
    if follows.cpu {
        // All for one period, so that different ones add up.
        let sum = sum(asked, |one| {
            let quota = one.cpu.quota?.value()?.0;
            let period = one
                .cpu
                .period
                .map_or(DEFAULT_PERIOD, |period| period.0)
                .max(1);
            Some(quota.saturating_mul(DEFAULT_PERIOD).div_ceil(period))
        });
        resources.cpu.period = Some(Micros(DEFAULT_PERIOD));
        resources.cpu.quota = Some(sum.map_or(Limit::Unlimited, |sum| Limit::Of(Micros(sum))));
    }
    resources
}

/// The limits of a pod for which they were `said`, after those of one container
/// have changed: as much more or less. The kubelet resizes a pod so, whose own
/// cgroup it has raised before.
pub fn resized(
    said: &Resources,
    follows: FollowsContainers,
    before: &Resources,
    after: &Resources,
    cgroup: &Cgroup,
) -> Resources {
    let mut resources = Resources::default();
    let moved = |said: u64, before: u64, after: u64| said.saturating_add(after) - before.min(said);
    let bytes = |limit: Option<Limit<Bytes>>| Some(limit?.value()?.0);
    let memory = |of: &Resources| bytes(of.memory.limit);
    if !follows.memory
        && let (Some(said), Some(before), Some(after)) =
            (memory(said), memory(before), memory(after))
        && before != after
    {
        resources.memory.limit = Some(Limit::Of(Bytes(moved(said, before, after))));
        bind(&mut resources, cgroup);
    }
    if resources.memory.limit.is_some()
        && let (Some(swap), Some(limit)) = (bytes(said.memory.swap), memory(&resources))
    {
        // It is of both together, so it moves with the memory.
        let swap = moved(
            swap,
            memory(before).unwrap_or(0),
            memory(after).unwrap_or(0),
        );
        resources.memory.swap = Some(Limit::Of(Bytes(swap.max(limit))));
    }
    let period = said.cpu.period.map_or(DEFAULT_PERIOD, |period| period.0);
    let quota = |of: &Resources| {
        let own = of
            .cpu
            .period
            .map_or(DEFAULT_PERIOD, |period| period.0)
            .max(1);
        let quota = of.cpu.quota?.value()?.0;
        Some(quota.saturating_mul(period).div_ceil(own))
    };
    if !follows.cpu
        && let (Some(said), Some(before), Some(after)) = (quota(said), quota(before), quota(after))
        && before != after
    {
        resources.cpu.period = Some(Micros(period));
        resources.cpu.quota = Some(Limit::Of(Micros(moved(said, before, after))));
    }
    resources
}

/// The limit of memory and swap together, for a memory `limit`: the sum of the
/// containers', if any has one. Never below the limit of memory alone, which the
/// kernel refuses.
fn swap_of(
    asked: &[Resources],
    limit: Option<Limit<Bytes>>,
    config: &Config,
) -> Option<Limit<Bytes>> {
    let Some(Limit::Of(limit)) = limit else {
        return Some(Limit::Unlimited);
    };
    asked.iter().find(|one| one.memory.swap.is_some())?;
    let sum = sum(asked, |one| Some(one.memory.swap?.value()?.0));
    Some(sum.map_or(Limit::Unlimited, |sum| {
        Limit::Of(limit.max(Bytes(sum.saturating_add(config.pod_overhead().0))))
    }))
}

/// Puts an update's figures over those that were asked before.
pub fn merge(asked: &mut Resources, update: &Resources) {
    asked.memory.limit = update.memory.limit.or(asked.memory.limit);
    asked.memory.swap = update.memory.swap.or(asked.memory.swap);
    asked.cpu.quota = update.cpu.quota.or(asked.cpu.quota);
    asked.cpu.period = update.cpu.period.or(asked.cpu.period);
}

/// The update that leads from `after` back to `before`, where that had no limit
/// to none.
pub fn back_to(before: &Resources, after: &Resources) -> Resources {
    fn or_none<T>(before: Option<Limit<T>>, after: Option<Limit<T>>) -> Option<Limit<T>> {
        before.or(after.map(|_| Limit::Unlimited))
    }
    let mut back = Resources::default();
    back.memory.limit = or_none(before.memory.limit, after.memory.limit);
    back.memory.swap = or_none(before.memory.swap, after.memory.swap);
    back.cpu.quota = or_none(before.cpu.quota, after.cpu.quota);
    back.cpu.period = before.cpu.period;
    back
}

/// The sum of a figure that every one has; `None` if one lacks it, or none is
/// there.
fn sum(asked: &[Resources], figure: impl Fn(&Resources) -> Option<u64>) -> Option<u64> {
    if asked.is_empty() {
        return None;
    }
    asked
        .iter()
        .try_fold(0_u64, |sum, one| Some(sum.saturating_add(figure(one)?)))
}

/// The period of CPU quotas where none is given (runtime-spec, kernel default).
const DEFAULT_PERIOD: u64 = 100_000;

/// Takes over what binds from above, where that is tighter, or where nothing
/// else is known. The kubelet's figures for a pod, on the pod's own cgroup,
/// include its RuntimeClass overhead: they win over ours.
fn bind(resources: &mut Resources, cgroup: &Cgroup) {
    let Some(pod) = cgroup.parent() else { return };
    let above = pod.limits_in_force();
    if let Limit::Of(bytes) = above.memory {
        let own = resources.memory.limit.unwrap_or(Limit::Unlimited);
        let pods_own = pod
            .stats()
            .memory
            .memory
            .limit
            .is_some_and(|limit| limit == above.memory);
        if pods_own || own > above.memory {
            resources.memory.limit = Some(Limit::Of(bytes));
        }
    }
}

/// Takes over the memory limit that binds a lone container from above, if it is
/// tighter than its own. A cgroup that somebody has made before, with limits of
/// which the spec says nothing, is left to them.
fn bind_lone(resources: &mut Resources, cgroup: &Cgroup) {
    let own = resources.memory.limit.unwrap_or(Limit::Unlimited);
    let theirs = resources.memory.limit.is_none() && cgroup.exists();
    let above = cgroup
        .parent()
        .map_or(Limit::Unlimited, |parent| parent.limits_in_force().memory);
    if own > above && !theirs {
        resources.memory.limit = Some(above);
    }
}

/// Refuses limits below what the sandbox itself needs.
///
/// # Errors
/// [`Error::InvalidArgument`] with both numbers.
pub fn check(resources: &Resources, config: &Config) -> Result<()> {
    if let Some(Limit::Of(pids)) = resources.pids
        && pids < SANDBOX_THREADS
    {
        return Err(Error::InvalidArgument(format!(
            "the limit of {pids} processes is below the {SANDBOX_THREADS} threads that a gVisor sandbox needs for itself: raise it"
        )));
    }
    let Some(Limit::Of(limit)) = resources.memory.limit else {
        return Ok(());
    };
    if limit >= SANDBOX_NEEDS {
        return Ok(());
    }
    let raised = match config.overhead_memory {
        Some(overhead) => format!(" (with overhead_memory = {overhead})"),
        None => String::new(),
    };
    Err(Error::InvalidArgument(format!(
        "the memory limit of {} bytes{raised} is below the {} bytes that a gVisor sandbox needs for itself: raise the limit, or set overhead_memory in Rampart's configuration",
        limit.0, SANDBOX_NEEDS.0
    )))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use cgroups::Host;

    use super::*;

    fn spec(annotations: &[(&str, &str)], resources: &serde_json::Value) -> Spec {
        let annotations: HashMap<&str, &str> = annotations.iter().copied().collect();
        serde_json::from_value(serde_json::json!({
            "ociVersion": "1.0.2",
            "annotations": annotations,
            "linux": {"resources": resources},
        }))
        .unwrap()
    }

    fn cgroup() -> Cgroup {
        Cgroup::new(
            &Host::detect().unwrap(),
            Path::new("/rampart-limits-test/a"),
        )
        .unwrap()
    }

    const SANDBOX: (&str, &str) = ("io.kubernetes.cri.container-type", "sandbox");

    #[test]
    fn a_lone_containers_limits_are_kept_to_the_byte() {
        let resources = serde_json::json!({"memory": {"limit": 34_603_008}});
        let spec = spec(&[], &resources);
        let (limits, follows) = of_sandbox(&spec, &Config::default(), &cgroup()).unwrap();
        assert_eq!(limits.memory.limit, Some(Limit::Of(Bytes(34_603_008))));
        assert_eq!(follows, FollowsContainers::default());
        let config = Config {
            overhead_memory: Some(1 << 20),
            ..Config::default()
        };
        let (limits, _) = of_sandbox(&spec, &config, &cgroup()).unwrap();
        assert_eq!(
            limits.memory.limit,
            Some(Limit::Of(Bytes(34_603_008 + (1 << 20))))
        );
    }

    #[test]
    fn limits_in_which_no_sandbox_can_run_are_refused_with_both_numbers() {
        let memory = spec(&[], &serde_json::json!({"memory": {"limit": 11_534_336}}));
        let error = of_sandbox(&memory, &Config::default(), &cgroup())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("11534336") && error.contains("20971520"),
            "{error}"
        );
        let config = Config {
            overhead_memory: Some(32 << 20),
            ..Config::default()
        };
        of_sandbox(&memory, &config, &cgroup()).unwrap();
        let pids = spec(&[], &serde_json::json!({"pids": {"limit": 16}}));
        let error = of_sandbox(&pids, &Config::default(), &cgroup())
            .unwrap_err()
            .to_string();
        assert!(error.contains("16") && error.contains("40"), "{error}");
    }

    #[test]
    fn a_pods_limits_come_from_its_annotations() {
        let spec = spec(
            &[
                SANDBOX,
                ("io.kubernetes.cri.sandbox-cpu-quota", "50000"),
                ("io.kubernetes.cri.sandbox-cpu-period", "100000"),
                ("io.kubernetes.cri.sandbox-cpu-shares", "512"),
                ("io.kubernetes.cri.sandbox-memory", "134217728"),
            ],
            &serde_json::json!({"cpu": {"shares": 2}}),
        );
        let (limits, follows) = of_sandbox(&spec, &Config::default(), &cgroup()).unwrap();
        assert_eq!(limits.cpu.shares, Some(512));
        assert_eq!(limits.cpu.quota, Some(Limit::Of(Micros(50_000))));
        assert_eq!(
            limits.memory.limit,
            Some(Limit::Of(Bytes((128 << 20) + (32 << 20))))
        );
        assert_eq!(follows, FollowsContainers::default());
    }

    #[test]
    fn a_pod_whose_limits_are_said_is_resized_with_its_containers() {
        let limits = |memory: i64, quota: i64, period: u64| {
            of_spec(&spec(
                &[],
                &serde_json::json!({
                    "memory": {"limit": memory}, "cpu": {"quota": quota, "period": period}
                }),
            ))
            .unwrap()
        };
        let said = limits(160 << 20, 100_000, 100_000);
        let none = FollowsContainers::default();
        let before = limits(64 << 20, 50_000, 100_000);
        let of = |follows, after: &Resources| {
            let new = resized(&said, follows, &before, after, &cgroup());
            (new.memory.limit, new.cpu.quota)
        };
        let memory = |mib: u64| Some(Limit::Of(Bytes(mib << 20)));
        let quota = |micros| Some(Limit::Of(Micros(micros)));
        let more = limits(96 << 20, 50_000, 50_000);
        assert_eq!(of(none, &more), (memory(192), quota(150_000)));
        let less = limits(32 << 20, 25_000, 100_000);
        assert_eq!(of(none, &less), (memory(128), quota(75_000)));
        assert_eq!(of(none, &before), (None, None), "nothing has changed");
        let all = FollowsContainers {
            memory: true,
            cpu: true,
        };
        assert_eq!(of(all, &more), (None, None), "the sum says it");
    }

    #[test]
    fn without_annotations_the_containers_limits_add_up() {
        let nothing = spec(&[SANDBOX], &serde_json::json!({"cpu": {"shares": 2}}));
        let (_, follows) = of_sandbox(&nothing, &Config::default(), &cgroup()).unwrap();
        assert_eq!(
            follows,
            FollowsContainers {
                memory: true,
                cpu: true
            }
        );
        let asks = |memory: i64, quota: i64, period: u64| {
            of_spec(&spec(
                &[],
                &serde_json::json!({
                    "memory": {"limit": memory}, "cpu": {"quota": quota, "period": period}
                }),
            ))
            .unwrap()
        };
        let config = Config {
            overhead_memory: Some(0),
            ..Config::default()
        };
        let both = [
            asks(64 << 20, 50_000, 100_000),
            asks(32 << 20, 50_000, 200_000),
        ];
        let sum = of_containers(&both, follows, &config, &cgroup());
        assert_eq!(sum.memory.limit, Some(Limit::Of(Bytes(96 << 20))));
        assert_eq!(sum.cpu.quota, Some(Limit::Of(Micros(75_000))));
        assert_eq!(sum.memory.swap, None, "nobody speaks of swap");
        let with_swap: Vec<_> = both
            .iter()
            .cloned()
            .map(|mut one| {
                one.memory.swap = one.memory.limit;
                one
            })
            .collect();
        let sum = of_containers(&with_swap, follows, &config, &cgroup());
        assert_eq!(sum.memory.swap, Some(Limit::Of(Bytes(96 << 20))));
        let sum = of_containers(&[], follows, &config, &cgroup());
        assert_eq!(sum.memory.swap, Some(Limit::Unlimited));
        let one_without = [asks(64 << 20, 50_000, 100_000), Resources::default()];
        let sum = of_containers(&one_without, follows, &config, &cgroup());
        assert_eq!(sum.memory.limit, Some(Limit::Unlimited));
        assert_eq!(sum.cpu.quota, Some(Limit::Unlimited));
    }
}
