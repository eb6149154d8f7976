//! Brings up the loopback interface of a network namespace that runsc made.
//!
//! The sentry takes over what it finds up in the namespace when it starts. In one
//! that nobody else sets up, the guest would not even have loopback; runc brings
//! it up in the same case.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, setns};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Index of the loopback interface, the first in every network namespace.
const LOOPBACK: i32 = 1;

/// Sets loopback up in the network namespace at `path`; the kernel then gives it
/// its addresses.
pub(super) fn bring_up(path: &Path) -> io::Result<()> {
    let namespace = File::open(path)?;
    // A thread can be in another network namespace than its process.
    let set = move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        set_up()
    };
    std::thread::scope(|scope| scope.spawn(set).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

fn set_up() -> io::Result<()> {
    let kind = SocketType::RAW;
    // The routing protocol is number zero, the default.
    let socket = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, None)?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    match error_of(&answer[..length]) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no acknowledgement",
        )),
    }
}

/// `RTM_NEWLINK` for loopback with `IFF_UP` (`rtnetlink(7)`).
fn request() -> Vec<u8> {
    const RTM_NEWLINK: u16 = 16;
    const NLM_F_REQUEST_ACK: u16 = 1 | 4;
    const IFF_UP: u32 = 1;
    let mut bytes = Vec::with_capacity(32);
    // struct nlmsghdr: length, type, flags, sequence, port
    bytes.extend(32_u32.to_ne_bytes());
    bytes.extend(RTM_NEWLINK.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    bytes.extend([0; 8]);
    // struct ifinfomsg: family and type (any), index, flags, which flags
    bytes.extend([0; 4]);
    bytes.extend(LOOPBACK.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes());
    bytes
}

/// The errno, negated, of an `NLMSG_ERROR`; zero acknowledges.
fn error_of(answer: &[u8]) -> Option<i32> {
    const NLMSG_ERROR: u16 = 2;
    let kind = answer.get(4..6)?.try_into().map(u16::from_ne_bytes).ok()?;
    let error = answer
        .get(16..20)?
        .try_into()
        .map(i32::from_ne_bytes)
        .ok()?;
    (kind == NLMSG_ERROR).then_some(error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use nix::sched::unshare;

    #[test]
    fn loopback_of_a_new_namespace_comes_up() {
        if !nix::unistd::geteuid().is_root() {
            return println!("skipped: needs root");
        }
        // A thread of its own, so that the other tests keep their network.
        std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let routes = || std::fs::read_to_string("/proc/thread-self/net/fib_trie").unwrap();
            assert!(!routes().contains("127.0.0.1"));
            bring_up(Path::new("/proc/thread-self/ns/net")).unwrap();
            assert!(routes().contains("127.0.0.1"));
        })
        .join()
        .unwrap();
    }

    proptest! {
        #[test]
        fn any_answer_of_the_kernel_is_read(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if error_of(&bytes).is_some() {
                prop_assert!(bytes.len() >= 20);
            }
        }
    }
}
