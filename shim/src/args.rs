//! containerd's command line: flags in Go's style, then one sub-command.
//!
//! Only the words are judged here; what they lead to is the caller's.

use std::ffi::OsString;
use std::iter::Peekable;

use crate::error::{Error, Result};

/// What the binary was called for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// `start`: make sure a shim serves this task and print its address.
    Start(Flags),
    /// `delete`: clean up after a shim that is gone.
    Delete(Flags),
    /// `serve`: be the shim; `start` runs it, nobody else should.
    Serve(Flags),
    /// `-info`: describe the runtime.
    Info,
    /// `-v`: print the version, for people.
    Version,
}

/// The flags that containerd passes to every sub-command
/// (containerd core/runtime/v2/README.md).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// containerd namespace of the task.
    pub namespace: String,
    /// Path of containerd's gRPC socket.
    pub address: String,
    /// containerd's own binary, which can publish events.
    pub publish_binary: String,
    /// Id of the task (for `serve`: the id that the shim was started for).
    pub id: String,
    /// Bundle directory; given to `delete` only.
    pub bundle: String,
    /// Log at debug level.
    pub debug: bool,
    /// `serve` only: the path of the listening socket that stands on stdin.
    pub socket: String,
}

/// Parses what follows the program's name.
///
/// # Errors
/// [`Error::Usage`] names the first word that cannot be understood.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Action> {
    let mut words = words
        .map(|word| {
            word.into_string()
                .map_err(|word| Error::Usage(format!("{} is not UTF-8", word.display())))
        })
        .peekable();
    let mut flags = Flags::default();
    let mut info = false;
    while let Some(word) = words.next() {
        let word = word?;
        let Some(flag) = word.strip_prefix('-') else {
            return if info {
                Ok(Action::Info)
            } else {
                action(&word, flags, words)
            };
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let (name, inline) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        match name {
            "v" | "version" => return Ok(Action::Version),
            "info" => info = boolean(name, inline.as_deref())?,
            "debug" => flags.debug = boolean(name, inline.as_deref())?,
            "namespace" => flags.namespace = value(name, inline, &mut words)?,
            "address" => flags.address = value(name, inline, &mut words)?,
            "publish-binary" => flags.publish_binary = value(name, inline, &mut words)?,
            "id" => flags.id = value(name, inline, &mut words)?,
            "bundle" => flags.bundle = value(name, inline, &mut words)?,
            "socket" => flags.socket = value(name, inline, &mut words)?,
            _ => return Err(Error::Usage(format!("unknown flag {word}"))),
        }
    }
    if info {
        return Ok(Action::Info);
    }
    Err(Error::Usage(
        "no sub-command: containerd calls start or delete; for people there is -v".into(),
    ))
}

fn action(
    word: &str,
    flags: Flags,
    mut rest: impl Iterator<Item = Result<String>>,
) -> Result<Action> {
    if let Some(extra) = rest.next() {
        return Err(Error::Usage(format!("unexpected {} after {word}", extra?)));
    }
    let action = match word {
        "start" => Action::Start(flags),
        "delete" => Action::Delete(flags),
        "serve" => Action::Serve(flags),
        _ => return Err(Error::Usage(format!("unknown sub-command {word}"))),
    };
    let (Action::Start(flags) | Action::Delete(flags) | Action::Serve(flags)) = &action else {
        return Ok(action);
    };
    check_identifier("-namespace", &flags.namespace)?;
    check_identifier("-id", &flags.id)?;
    Ok(action)
}

fn value(
    name: &str,
    inline: Option<String>,
    words: &mut Peekable<impl Iterator<Item = Result<String>>>,
) -> Result<String> {
    match inline {
        Some(value) => Ok(value),
        None => words
            .next()
            .unwrap_or_else(|| Err(Error::Usage(format!("-{name} needs a value")))),
    }
}

fn boolean(name: &str, inline: Option<&str>) -> Result<bool> {
    match inline {
        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(other) => Err(Error::Usage(format!(
            "-{name}={other} is neither true nor false"
        ))),
    }
}

/// Checks an id or a namespace by containerd's rule (pkg/identifiers): 1 to 76
/// letters, digits, and `.`, `_`, `-` between them. Ids become parts of file
/// names here, so nothing else may pass.
///
/// # Errors
/// [`Error::InvalidArgument`] names `what` and the value.
pub fn check_identifier(what: &str, value: &str) -> Result<()> {
    let good = !value.is_empty()
        && value.len() <= 76
        && value
            .split(['.', '_', '-'])
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    if good {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "{what} {value:?} is not an identifier: 1 to 76 letters and digits with single '.', '_' or '-' between them"
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(line: &str) -> Result<Action> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn flags_come_with_one_or_two_dashes_inline_or_apart() {
        let expected = Flags {
            namespace: "k8s.io".into(),
            address: "/run/c.sock".into(),
            publish_binary: "/usr/bin/containerd".into(),
            id: "abc".into(),
            debug: true,
            ..Flags::default()
        };
        for line in [
            "-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id abc -debug start",
            "--namespace=k8s.io --address=/run/c.sock --publish-binary=/usr/bin/containerd --id=abc --debug=true start",
        ] {
            assert_eq!(
                parsed(line).unwrap(),
                Action::Start(expected.clone()),
                "{line}"
            );
        }
    }

    #[test]
    fn the_other_actions() {
        assert_eq!(parsed("-v").unwrap(), Action::Version);
        assert_eq!(parsed("-info").unwrap(), Action::Info);
        assert_eq!(parsed("-info -id x").unwrap(), Action::Info);
        assert!(matches!(
            parsed("-namespace a -id b -bundle /b delete").unwrap(),
            Action::Delete(flags) if flags.bundle == "/b"
        ));
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (line, part) in [
            ("", "no sub-command"),
            ("-wrong start", "-wrong"),
            ("-namespace a -id b begin", "begin"),
            ("-namespace a -id b start more", "more"),
            ("-namespace a -id", "-id needs a value"),
            ("-namespace a -id ../x start", "../x"),
            ("-namespace a/b -id x start", "a/b"),
            ("-debug=maybe start", "maybe"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line:?} gave {error:?}");
        }
    }

    #[test]
    fn identifiers_follow_containerd() {
        for good in ["a", "a-b_c.d", "k8s.io", "A1", &"x".repeat(76)] {
            check_identifier("id", good).unwrap();
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "-a",
            "a-",
            "a..b",
            "a b",
            "ä",
            &"x".repeat(77),
        ] {
            assert!(check_identifier("id", bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_words_are_an_action_or_an_error(
            words in prop::collection::vec("(-{0,2}(id|namespace|debug|info|bundle|x)?=?|start|delete|serve|[a-z./]{0,4})", 0..8),
        ) {
            match parse(words.iter().map(OsString::from)) {
                Ok(Action::Start(flags) | Action::Delete(flags) | Action::Serve(flags)) => {
                    prop_assert!(check_identifier("id", &flags.id).is_ok());
                    prop_assert!(!flags.id.contains('/') && !flags.namespace.contains('/'));
                }
                Ok(Action::Info | Action::Version) => {}
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
