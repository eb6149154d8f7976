//! Between the shim's values and the task API's messages.

use protos::protobuf::well_known_types::any::Any;
use protos::protobuf::well_known_types::timestamp::Timestamp;
use protos::protobuf::{Message, MessageField};
use protos::runc::ProcessDetails;
use protos::task::Status;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::process::{Exit, State};

/// The time of an exit, as containerd wants it; absent before.
pub fn exited_at(exit: Option<Exit>) -> MessageField<Timestamp> {
    exit.map(|exit| Timestamp::from(exit.at)).into()
}

/// containerd's name of a state.
pub fn status(state: State) -> Status {
    match state {
        State::Created | State::Starting => Status::CREATED,
        State::Running => Status::RUNNING,
        State::Paused => Status::PAUSED,
        State::Stopped(_) => Status::STOPPED,
    }
}

/// Packs a message under the type name that containerd knows it by.
///
/// # Errors
/// It cannot be encoded.
pub fn pack(type_name: &str, message: &impl Message) -> Result<Any> {
    let value = message.write_to_bytes().map_err(|source| Error::Message {
        what: format!("encode {type_name}"),
        source,
    })?;
    Ok(Any {
        type_url: type_name.to_owned(),
        value,
        ..Any::default()
    })
}

/// What tells an exec's process in a list of processes from others.
///
/// # Errors
/// It cannot be encoded.
pub fn process_details(exec_id: String) -> Result<Any> {
    let details = ProcessDetails {
        exec_id,
        ..ProcessDetails::default()
    };
    pack("containerd.runc.v1.ProcessDetails", &details)
}

/// A host pid as the API has it.
pub fn pid(pid: nix::unistd::Pid) -> u32 {
    u32::try_from(pid.as_raw()).unwrap_or_default()
}

/// Decodes a JSON object; `what` tells what for, as in `decode the resources`.
///
/// # Errors
/// [`Error::Json`], also for a list: serde takes one for the fields in order.
pub fn json_object<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    let refused = |source| Error::Json {
        what: what.to_owned(),
        source,
    };
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        let cause = "it is a list, no object";
        return Err(refused(serde::de::Error::custom(cause)));
    }
    serde_json::from_slice(bytes).map_err(refused)
}
