//! Which flags this runsc knows: an unknown one would make every command fail.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use super::command::{Runsc, read_start};
use crate::error::{Error, Result};
use crate::stdio::null;

impl Runsc {
    /// Whether runsc lists the flag `name`; a runsc that lists none has none.
    ///
    /// It is asked where the shim itself is: that is a question about the program,
    /// not yet work for the pod, and a scope would end with its first process.
    pub(super) async fn knows(&self, name: &str, dir: &Path) -> Result<bool> {
        let list = dir.join("flags");
        let mut command = Command::new(&self.config.runsc);
        let file = File::create(&list).map_err(Error::io("create", &list))?;
        let open = || null().map_err(Error::io("open", "/dev/null"));
        command
            .arg(OsStr::new("flags"))
            .stdin(open()?)
            .stdout(open()?)
            .stderr(file);
        // One that does not answer is not fit to create a sandbox, which will say so.
        self.run_outside(command, self.config.deadlines.probe)
            .await?;
        let text = read_start(&list);
        std::fs::remove_file(&list).map_err(Error::io("remove", &list))?;
        Ok(lists(&text, name))
    }
}

/// Whether a list as Go's flag package prints it has the flag.
fn lists(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let words = line.trim_start().strip_prefix('-');
        words.is_some_and(|words| words.split_whitespace().next() == Some(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_found_by_their_whole_name() {
        let list = "  -allow-suid\n    \tallows --it with -none\n  -root value\n\n";
        for (name, known) in [
            ("allow-suid", true),
            ("root", true),
            ("allow", false),
            ("none", false),
            ("it", false),
            ("value", false),
        ] {
            assert_eq!(lists(list, name), known, "{name}");
        }
        assert!(!lists("", "root"));
    }
}
