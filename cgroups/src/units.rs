//! Units of what the kernel says and is told, so that none is taken for
//! another.

/// A number of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A time in microseconds, as cgroup v2 and the CPU bandwidth files count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

/// A time in nanoseconds, as cgroup v1 counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl From<Micros> for Nanos {
    /// Saturates: 2^64 nanoseconds are 584 years.
    fn from(time: Micros) -> Self {
        Self(time.0.saturating_mul(1000))
    }
}

impl From<Nanos> for Micros {
    /// Drops the part below a microsecond.
    fn from(time: Nanos) -> Self {
        Self(time.0 / 1000)
    }
}

/// A limit: a figure, or none.
///
/// The order puts [`Limit::Unlimited`] last, so the minimum of several limits
/// is the one in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit<T> {
    /// At most this much.
    Of(T),
    /// As much as there is.
    Unlimited,
}

impl<T> Limit<T> {
    /// The figure, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Of(value) => Some(value),
            Self::Unlimited => None,
        }
    }

    /// The same limit in another unit.
    pub fn map<U>(self, unit: impl FnOnce(T) -> U) -> Limit<U> {
        match self {
            Self::Of(value) => Limit::Of(unit(value)),
            Self::Unlimited => Limit::Unlimited,
        }
    }
}

impl Limit<Bytes> {
    /// The figure with 2^64 - 1 for none, as containerd's metrics have it.
    #[must_use]
    pub fn or_max(self) -> u64 {
        self.value().map_or(u64::MAX, |bytes| bytes.0)
    }
}

impl Limit<u64> {
    /// The figure with 2^64 - 1 for none, as containerd's metrics have it.
    #[must_use]
    pub fn or_max(self) -> u64 {
        self.value().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_of_limits_is_the_one_in_force() {
        assert_eq!(
            Limit::Of(Bytes(5)).min(Limit::Unlimited),
            Limit::Of(Bytes(5))
        );
        assert_eq!(Limit::Of(5_u64).min(Limit::Of(3)), Limit::Of(3));
        assert_eq!(Limit::<u64>::Unlimited.or_max(), u64::MAX);
    }

    #[test]
    fn times_convert_without_overflow() {
        assert_eq!(Nanos::from(Micros(7)), Nanos(7000));
        assert_eq!(Nanos::from(Micros(u64::MAX)), Nanos(u64::MAX));
        assert_eq!(Micros::from(Nanos(7999)), Micros(7));
    }
}
