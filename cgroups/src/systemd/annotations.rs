//! Properties that a spec's annotations carry.

use std::collections::HashMap;

use super::{Properties, Property};
use crate::error::Result;
use crate::resources::fault;

/// The prefix of annotations that are properties.
const ANNOTATION: &str = "org.systemd.property.";

/// Properties from a spec's annotations `org.systemd.property.Name`, whose
/// values are written as GVariant text: `true`, `uint64 5`, `'text'`,
/// `['a', 'b']`. `…Sec` becomes `…USec` with its number multiplied by a
/// million. Sorted by name.
///
/// # Errors
/// A name that is none, or a value of another form.
pub fn annotated_properties<'a>(
    annotations: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<Properties> {
    let named: HashMap<&str, &str> = annotations
        .into_iter()
        .filter_map(|(k, v)| Some((k.strip_prefix(ANNOTATION)?, v.as_str())))
        .collect();
    let mut properties = Vec::new();
    for (name, text) in named {
        let fault = |reason| fault(&format!("{ANNOTATION}{name}"), text, reason);
        if name.len() < 3 || !name.bytes().all(|b| b.is_ascii_alphabetic()) {
            return fault("a property's name is three letters or more, and letters only");
        }
        let seconds = name
            .strip_suffix("Sec")
            .filter(|n| n.ends_with(|c: char| c.is_ascii_lowercase()));
        let (name, value) = match seconds {
            None => (name.to_owned(), parse_value(text)),
            Some(stem) => (format!("{stem}USec"), parse_micros(text)),
        };
        match value {
            Some(value) => properties.push((name, value)),
            None => return fault("true, false, a number, 'text' or ['text', …] is understood"),
        }
    }
    properties.sort_by(|a: &(String, Property), b| a.0.cmp(&b.0));
    Ok(properties)
}

fn parse_value(text: &str) -> Option<Property> {
    let text = text.trim();
    let typed = |kind| text.strip_prefix(kind).map(str::trim);
    if let Some(number) = typed("uint64 ") {
        number.parse().ok().map(Property::U64)
    } else if let Some(number) = typed("uint32 ") {
        number.parse().ok().map(Property::U32)
    } else if let Some(number) = typed("int64 ") {
        number.parse().ok().map(Property::I64)
    } else if let Some(number) = typed("int32 ") {
        number.parse().ok().map(Property::I32)
    } else if let Some(items) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        items
            .split(',')
            .map(quoted)
            .collect::<Option<_>>()
            .map(Property::Strings)
    } else if let Some(string) = quoted(text) {
        Some(Property::Str(string))
    } else {
        match text {
            "true" => Some(Property::Bool(true)),
            "false" => Some(Property::Bool(false)),
            text => text.parse().ok().map(Property::I32),
        }
    }
}

/// A string in quotes, without escapes: none of systemd's values need one.
fn quoted(text: &str) -> Option<String> {
    let text = text.trim();
    let inner = ['\'', '"']
        .iter()
        .find_map(|q| text.strip_prefix(*q)?.strip_suffix(*q))?;
    (!inner.contains(['\'', '"', '\\'])).then(|| inner.to_owned())
}

fn parse_micros(text: &str) -> Option<Property> {
    let words = text.trim();
    let number = ["uint64 ", "uint32 ", "int64 ", "int32 ", "double "]
        .iter()
        .find_map(|t| words.strip_prefix(t));
    let number = number.unwrap_or(words).trim();
    if let Ok(seconds) = number.parse::<u64>() {
        return seconds.checked_mul(1_000_000).map(Property::U64);
    }
    let (whole, fraction) = number.split_once('.')?;
    let micros = format!("{fraction:0<6}");
    let fraction: u64 = micros
        .get(..6)
        .filter(|_| !fraction.is_empty())?
        .parse()
        .ok()?;
    Some(Property::U64(
        whole
            .parse::<u64>()
            .ok()?
            .checked_mul(1_000_000)?
            .checked_add(fraction)?,
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn annotations_become_properties() {
        let annotation =
            |name: &str, value: &str| (format!("org.systemd.property.{name}"), value.to_owned());
        let annotations = HashMap::from([
            annotation("TimeoutStopSec", "uint64 5"),
            annotation("RuntimeMaxSec", "1.5"),
            annotation("CollectMode", "'inactive-or-failed'"),
            annotation("SendSIGHUP", "true"),
            annotation("KillSignal", "9"),
            annotation("After", "['a.service', \"b.service\"]"),
            ("other".to_owned(), "x".to_owned()),
        ]);
        assert_eq!(
            annotated_properties(&annotations).unwrap(),
            [
                (
                    "After".to_owned(),
                    Property::Strings(vec!["a.service".into(), "b.service".into()])
                ),
                (
                    "CollectMode".to_owned(),
                    Property::Str("inactive-or-failed".into())
                ),
                ("KillSignal".to_owned(), Property::I32(9)),
                ("RuntimeMaxUSec".to_owned(), Property::U64(1_500_000)),
                ("SendSIGHUP".to_owned(), Property::Bool(true)),
                ("TimeoutStopUSec".to_owned(), Property::U64(5_000_000)),
            ]
        );
        for (name, value) in [("ab", "1"), ("a-bc", "1"), ("Abc", "{}"), ("AbcSec", "'x'")] {
            assert!(
                annotated_properties(&HashMap::from([annotation(name, value)])).is_err(),
                "{name}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_annotation_is_a_property_or_an_error(name in "[A-Za-z]{0,9}(Sec)?", value in "[\\[\\]<>'@a-z0-9., -]{0,20}") {
            let annotations = HashMap::from([(format!("{ANNOTATION}{name}"), value)]);
            if let Err(error) = annotated_properties(&annotations) {
                prop_assert!(error.to_string().contains(&name), "{error}");
            }
        }
    }
}
