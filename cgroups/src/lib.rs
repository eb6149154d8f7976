//! cgroups of containers on version 1, hybrid and version 2 hosts: where they
//! are, which limits they get, who is in them, what they use.
//!
//! The way of a container through this crate:
//!
//! 1. [`Host::detect`] finds the hierarchies, [`CgroupPath::parse`] the place.
//! 2. [`Cgroup::new`] is a handle, without touching anything.
//!    [`Cgroup::create`] makes the directories, and tells which it made.
//! 3. [`Resources`] come from `linux.resources`; [`Cgroup::apply`] writes them.
//! 4. A process that is to live there calls [`enter`] with
//!    [`Cgroup::directories`] and only then executes its program, so that not a
//!    page is charged elsewhere.
//! 5. [`Cgroup::stats`] and [`OomWatch`] tell what happens in there.
//! 6. [`Cgroup::kill`] ends all that is in there, and [`Created::remove`]
//!    removes exactly what was made.
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//!
//! use cgroups::{Cgroup, CgroupPath, Host, Origin, Resources};
//! # fn run(linux: &oci_spec::runtime::LinuxResources) -> cgroups::Result<()> {
//! let host = Host::detect()?;
//! let path = CgroupPath::parse(Some("system.slice:docker:c1"), "c1", &Origin::of(&host)?)?;
//! let cgroup = Cgroup::new(&host, path.path())?;
//! let created = cgroup.create()?;
//! cgroup.apply(&Resources::try_from(linux)?)?;
//! cgroups::enter(&cgroup.directories())?;
//! // … and, in another process, when all is over:
//! cgroup.kill(Instant::now() + Duration::from_secs(10))?;
//! created.remove()
//! # }
//! ```
//!
//! What it does not do: it speaks to no D-Bus (it says which unit and which
//! properties, see [`systemd`]), it knows no containerd and no protobuf, and it
//! restricts no devices. A sandbox must open what it needs for its guest
//! (`/dev/kvm`, `/dev/net/tun`, …), which the container's own list of devices
//! does not carry; what the guest's programs may open is the sandbox's affair.
//! runsc leaves `devices.allow` and the device programs of version 2 alone for
//! the same reason.

mod cgroup;
mod cpus;
mod created;
mod error;
mod file;
mod host;
mod limits;
mod membership;
pub mod net;
mod oom;
mod path;
pub mod resources;
pub mod stats;
pub mod systemd;
mod units;

pub use cgroup::Cgroup;
pub use cpus::CpuSet;
pub use created::Created;
pub use error::{Error, Result};
pub use host::{Hierarchy, Host, Mode, Version};
pub use limits::{CpuQuota, Limits};
pub use membership::{await_membership, enter, membership, verify_membership};
pub use oom::OomWatch;
pub use path::{CgroupPath, Origin, expand_slice};
pub use resources::{Files, Resources};
pub use stats::Stats;
pub use units::{Bytes, Limit, Micros, Nanos};
