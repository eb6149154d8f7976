//! Lists of CPUs (and of memory nodes) in the kernel's notation, `0-3,7`.

use std::collections::BTreeSet;
use std::str::FromStr;

/// A set of CPUs or memory nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// One more than the largest number that the kernel can be built for.
    const END: u32 = 8192;

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The bit mask that systemd's AllowedCPUs= wants: least significant byte
    /// first, without zeros at the end.
    #[must_use]
    pub fn mask(&self) -> Vec<u8> {
        let len = self.0.last().map_or(0, |last| *last as usize / 8 + 1);
        let mut mask = vec![0; len];
        for cpu in &self.0 {
            mask[*cpu as usize / 8] |= 1 << (cpu % 8);
        }
        mask
    }
}

impl FromStr for CpuSet {
    /// What is wrong with the list.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FAULT: &str = "a list of numbers and ranges is wanted, such as 0-3,7";
        let number = |t: &str| match t.trim().parse::<u32>() {
            Ok(n) if n < Self::END => Ok(n),
            Ok(_) => Err("the kernel knows no number above 8191"),
            Err(_) => Err(FAULT),
        };
        let mut set = BTreeSet::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err("a range goes from the lower number to the higher one");
            }
            set.extend(first..=last);
        }
        Ok(Self(set))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn masks_are_least_significant_byte_first() {
        for (list, mask) in [
            ("0", vec![1]),
            ("8", vec![0, 1]),
            ("10-23", vec![0, 0xfc, 0xff]),
            ("0-3,7", vec![0x8f]),
            (" 1, 3\n", vec![0x0a]),
            ("", vec![]),
        ] {
            assert_eq!(
                list.parse::<CpuSet>().map(|s| s.mask()),
                Ok(mask),
                "{list:?}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for list in [
            "a",
            "1-",
            "-1",
            "3-1",
            "1-2-3",
            "8192",
            "99999999999",
            "0x1",
        ] {
            assert!(list.parse::<CpuSet>().is_err(), "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_list_has_a_mask_of_as_many_bits(list in "[0-9,-]{0,12}") {
            if let Ok(set) = list.parse::<CpuSet>() {
                let bits: u32 = set.mask().iter().map(|b| b.count_ones()).sum();
                prop_assert_eq!(bits as usize, set.count());
                prop_assert_ne!(set.mask().last().copied(), Some(0));
            }
        }
    }
}
