//! The wire: every protobuf message and ttrpc service that Rampart speaks.
//!
//! Most of them come generated from `containerd-shim-protos`; the few that no
//! published crate has are generated here from `proto/`.

pub use containerd_shim_protos::protobuf;
pub use containerd_shim_protos::ttrpc;

/// The task service (`containerd.task.v2.Task` and, wire-equal, `v3`).
pub mod task {
    pub use containerd_shim_protos::api::*;
    pub use containerd_shim_protos::shim_async::{Task, TaskClient, create_task};
}

/// Events: the messages on `/tasks/…` and the service that forwards them.
pub mod events {
    pub use containerd_shim_protos::events::task::*;
    pub use containerd_shim_protos::shim::{event::Envelope, events::ForwardRequest};
    pub use containerd_shim_protos::shim_async::{Client, Events, EventsClient, create_events};
    pub use containerd_shim_protos::topics::*;
}

/// What containerd 2.3 and later writes to `start` and reads back.
pub mod bootstrap {
    pub use containerd_shim_protos::bootstrap_api::*;
}

/// Answer to `-info`.
pub mod info {
    pub use containerd_shim_protos::types::introspection::*;
}

/// Options of the runc shim, which clients send to any runtime.
pub mod runc {
    pub use containerd_shim_protos::shim::oci::*;
}

/// `io.containerd.cgroups.v1.Metrics`.
pub mod metrics_v1 {
    pub use containerd_shim_protos::cgroups::metrics::*;
}

/// `io.containerd.cgroups.v2.Metrics`.
pub mod metrics_v2 {
    pub use containerd_shim_protos::cgroups_v2::metrics::*;
}

include!(concat!(env!("OUT_DIR"), "/messages/mod.rs"));
