//! Namespaces of items: paths of labels.

use crate::Rejection;

const MOST_LABELS: usize = 100;
const LONGEST_LABEL: usize = 1000;

/// A namespace whose labels were checked. Stored joined by dots, which no label contains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace(Vec<String>);

impl Namespace {
    /// Checks a complete namespace, which has at least one label.
    ///
    /// # Errors
    /// `Invalid` naming `field`.
    pub fn new(field: &str, labels: Vec<String>) -> Result<Self, Rejection> {
        if labels.is_empty() {
            return Err(Rejection::invalid(
                field,
                format!("{field}: Namespace cannot be empty."),
            ));
        }
        Self::part(field, labels)
    }

    /// Checks a prefix or suffix, which may be empty.
    ///
    /// # Errors
    /// `Invalid` naming `field`.
    pub fn part(field: &str, labels: Vec<String>) -> Result<Self, Rejection> {
        let refuse = |message: String| Err(Rejection::invalid(field, format!("{field}: {message}")));
        for label in &labels {
            if label.is_empty() {
                return refuse("Namespace labels cannot be empty strings.".to_owned());
            }
            if label.contains('.') {
                return refuse(format!(
                    "Invalid namespace label '{label}'. Namespace labels cannot contain periods ('.')."
                ));
            }
            if label.contains('\0') {
                return refuse("Namespace labels cannot contain NUL characters.".to_owned());
            }
            if label.chars().count() > LONGEST_LABEL {
                return refuse(format!("expected labels of at most {LONGEST_LABEL} characters"));
            }
        }
        if labels.len() > MOST_LABELS {
            return refuse(format!("expected at most {MOST_LABELS} labels"));
        }
        Ok(Self(labels))
    }

    /// Reads labels joined by dots, as query strings have them.
    pub fn from_dotted(field: &str, text: &str) -> Result<Self, Rejection> {
        let labels = if text.is_empty() {
            Vec::new()
        } else {
            text.split('.').map(str::to_owned).collect()
        };
        Self::new(field, labels)
    }

    #[must_use]
    pub fn dotted(&self) -> String {
        self.0.join(".")
    }

    #[must_use]
    pub fn labels(&self) -> &[String] {
        &self.0
    }
}

#[must_use]
pub fn split(dotted: &str) -> Vec<String> {
    dotted.split('.').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_checked() {
        let of =
            |labels: &[&str]| Namespace::new("namespace", labels.iter().map(|label| (*label).to_owned()).collect());
        assert_eq!(of(&["a", "b c"]).unwrap().dotted(), "a.b c");
        let long = "ü".repeat(LONGEST_LABEL);
        assert!(of(&[long.as_str(); MOST_LABELS]).is_ok());
        let longer = format!("{long}ü");
        for wrong in [
            &[][..],
            &[""],
            &["a", ""],
            &["a.b"],
            &["a\0"],
            &[&longer],
            &["a"; MOST_LABELS + 1],
        ] {
            assert_eq!(of(wrong).unwrap_err().field, "namespace", "{wrong:?}");
        }
        assert!(Namespace::part("prefix", Vec::new()).is_ok());
        assert_eq!(Namespace::from_dotted("namespace", "a.b").unwrap().labels(), ["a", "b"]);
    }
}
