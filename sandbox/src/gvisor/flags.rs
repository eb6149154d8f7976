//! Which flags this runsc knows: an unknown one would make every command fail.

use std::path::Path;

use super::command::{Runsc, read_start};
use crate::error::{Error, Result};

impl Runsc {
    /// Whether runsc lists the flag `name`; a runsc that lists none has none, and
    /// one that cannot even be asked says why when it is to create a sandbox.
    pub(super) async fn knows(&self, name: &str, dir: &Path) -> Result<bool> {
        let list = dir.join("flags");
        self.ask(vec!["flags".into()], &list).await?;
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
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn any_flag_of_a_list_is_found(names in prop::collection::vec("[a-z][a-z-]{0,9}", 1..6), noise in "[a-z \n\t-]{0,30}") {
            let list: String = names.iter().map(|name| format!("  -{name} value\n    \tsays what\n")).collect();
            for name in &names {
                prop_assert!(lists(&list, name));
            }
            let _whatever_it_holds = lists(&noise, "root");
        }
    }
}
