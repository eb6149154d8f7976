//! Which runsc this is, and what an old one cannot do.

/// A class of runsc releases that behave alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Releases from 2023 on, and builds from source, which tell no number.
    Current,
    /// The release of December 2022 that Debian 12 has. It cannot serve the
    /// sandbox network on present kernels (host and none work), has neither
    /// per-container memory nor systrap, and its control socket can be used by
    /// every local user of the network namespace.
    Debian2022,
}

impl Version {
    /// Recognises the output of `runsc --version`.
    #[must_use]
    pub fn parse(output: &str) -> Self {
        // "runsc version release-20221219.0", Debian: "runsc version 0.0~20221219.0-…".
        let digits = |text: &str| text.bytes().take(8).filter(u8::is_ascii_digit).count();
        let date = output
            .split(|c: char| !c.is_ascii_digit())
            .find(|part| part.starts_with("20") && digits(part) == 8);
        match date {
            Some(date) if date < "20230101" => Self::Debian2022,
            Some(_) | None => Self::Current,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_are_recognised() {
        for (output, version) in [
            (
                "runsc version release-20260905.0\nspec: 1.2.1\n",
                Version::Current,
            ),
            (
                "runsc version VERSION_MISSING\nspec: 1.2.1\n",
                Version::Current,
            ),
            (
                "runsc version release-20221219.0\nspec: 1.1.0-rc.1\n",
                Version::Debian2022,
            ),
            (
                "runsc version 0.0~20221219.0-1+b7\nspec: 1.0.2\n",
                Version::Debian2022,
            ),
            ("", Version::Current),
        ] {
            assert_eq!(Version::parse(output), version, "{output}");
        }
    }

    proptest! {
        #[test]
        fn any_output_is_of_some_version(output in "(runsc version )?[0-9~.a-zä-]{0,30}", day in 20_230_101..20_991_231_u32) {
            let _either = Version::parse(&output);
            let release = format!("runsc version release-{day}.0");
            prop_assert_eq!(Version::parse(&release), Version::Current);
        }
    }
}
