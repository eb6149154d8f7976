//! Terminals: pairs, sizes, and the signals that typed characters mean.
//!
//! Inside gVisor only the first container's terminal gets signals from the host's
//! line discipline. For the terminals of further containers and of execs the host
//! eats ^C and echoes it, and nothing reaches the guest: whoever copies the typed
//! bytes asks [`typed_signals`] and sends what it says to the foreground group
//! ([`crate::Target::Foreground`]); the same with SIGWINCH after [`resize`].

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, SpecialCharacterIndices, Termios, tcgetattr};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The signals that the terminal of `master` makes of `typed`, in order.
///
/// Ask before the bytes are written to the master: a program may change the
/// settings in answer to them.
///
/// # Errors
/// The settings could not be read.
pub fn typed_signals(master: impl AsFd, typed: &[u8]) -> io::Result<Vec<Signal>> {
    // Most typing has no control character at all: no system call for it.
    if !typed
        .iter()
        .any(|byte| *byte < 0x20 || *byte == 0x7f || *byte >= 0x80)
    {
        return Ok(Vec::new());
    }
    Ok(signals_of(typed, &tcgetattr(master)?))
}

/// The signals that a terminal with these settings makes of `typed`, in order.
#[must_use]
pub fn signals_of(typed: &[u8], settings: &Termios) -> Vec<Signal> {
    if !settings.local_flags.contains(LocalFlags::ISIG) {
        return Vec::new();
    }
    let characters = [
        (SpecialCharacterIndices::VINTR, Signal::SIGINT),
        (SpecialCharacterIndices::VQUIT, Signal::SIGQUIT),
        (SpecialCharacterIndices::VSUSP, Signal::SIGTSTP),
    ]
    // Zero means that the character is switched off (_POSIX_VDISABLE).
    .map(|(index, signal)| (settings.control_chars[index as usize], signal));
    let quoting = settings.control_chars[SpecialCharacterIndices::VLNEXT as usize];
    let quotes = settings
        .local_flags
        .contains(LocalFlags::ICANON | LocalFlags::IEXTEN);

    let mut signals = Vec::new();
    let mut quoted = false;
    for byte in typed {
        if quoted {
            quoted = false;
        } else if quotes && quoting != 0 && *byte == quoting {
            quoted = true;
        } else if let Some((_, signal)) = characters.iter().find(|(c, _)| *c != 0 && c == byte) {
            signals.push(*signal);
        }
    }
    signals
}

/// Sets the size of the terminal, in columns and rows.
///
/// # Errors
/// `terminal` is no terminal.
pub fn resize(terminal: impl AsFd, width: u16, height: u16) -> io::Result<()> {
    let size = Winsize {
        ws_row: height,
        ws_col: width,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal, size)?)
}

/// A new terminal: its master and its other end, both close-on-exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let end = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_NOCTTY)
        .open(OsStr::from_bytes(name.to_bytes()))?;
    Ok((master, end.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::termios::{SetArg, cfmakeraw, tcsetattr};
    use rustix::termios::tcgetwinsize;

    #[test]
    fn typed_characters_become_signals_as_the_settings_say() {
        let (master, end) = pair().unwrap();
        let typed = |bytes: &[u8]| typed_signals(&master, bytes).unwrap();
        assert_eq!(typed(b"ls -l\r"), []);
        assert_eq!(typed(b"\x03"), [Signal::SIGINT]);
        assert_eq!(
            typed(b"a\x1cb\x1a\x03"),
            [Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGINT],
            "in the order they were typed"
        );
        assert_eq!(typed(b"\x16\x03"), [], "^V quotes the next character");

        let mut settings = tcgetattr(&end).unwrap();
        settings.control_chars[SpecialCharacterIndices::VINTR as usize] = b'\x02';
        settings.control_chars[SpecialCharacterIndices::VQUIT as usize] = 0;
        tcsetattr(&end, SetArg::TCSANOW, &settings).unwrap();
        assert_eq!(
            typed(b"\x03\x02\x1c\x00"),
            [Signal::SIGINT],
            "stty intr ^B quit undef"
        );

        cfmakeraw(&mut settings);
        tcsetattr(&end, SetArg::TCSANOW, &settings).unwrap();
        assert_eq!(typed(b"\x02\x1a"), [], "a raw terminal makes no signals");
    }

    #[test]
    fn size_reaches_the_other_end() {
        let (master, end) = pair().unwrap();
        resize(&master, 132, 43).unwrap();
        let size = tcgetwinsize(&end).unwrap();
        assert_eq!((size.ws_col, size.ws_row), (132, 43));
    }
}
