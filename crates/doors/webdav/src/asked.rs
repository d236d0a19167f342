//! What a PROPFIND asks for: its body, read as XML with namespaces.
//!
//! Bounded in bytes, in depth and in properties. Document types, and with them entities, are
//! refused; so is what is not well formed. Elements of others are passed over.

use quick_xml::events::Event;
use quick_xml::name::ResolveResult;
use quick_xml::reader::NsReader;

/// Of a body.
pub const BODY_MAX: usize = 64 << 10;
/// Properties that are asked for at once.
pub const PROPERTIES_MAX: usize = 128;
const DEPTH_MAX: usize = 16;
const NAME_MAX: usize = 256;
const DAV: &str = "DAV:";

/// A property by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Property {
    pub namespace: String,
    pub name: String,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Also if nothing is said.
    All,
    /// Only what they are called.
    Names,
    These(Vec<Property>),
}

/// Why a body asks for nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskedError {
    #[error("the body is not well-formed XML")]
    Form,
    #[error("the body has a document type: leave it away")]
    DocumentType,
    #[error("the body is deeper than {DEPTH_MAX} elements")]
    Deep,
    #[error("the body asks for more than {PROPERTIES_MAX} properties, or for one with a long name")]
    Many,
    #[error("the body is no `propfind` of WebDAV")]
    Other,
}

impl Asked {
    pub fn parse(body: &[u8]) -> Result<Self, AskedError> {
        let text = std::str::from_utf8(body).map_err(|_| AskedError::Form)?;
        if text.trim().is_empty() {
            return Ok(Self::All);
        }
        let mut reader = NsReader::from_str(text);
        reader.config_mut().check_end_names = true;
        let (mut depth, mut asked, mut in_properties) = (0, None, false);
        loop {
            let (resolved, event) = reader.read_resolved_event().map_err(|_| AskedError::Form)?;
            let (element, is_empty) = match &event {
                Event::Start(element) => (element, false),
                Event::Empty(element) => (element, true),
                Event::End(_) => {
                    depth -= 1;
                    in_properties &= depth >= 2;
                    continue;
                }
                Event::DocType(_) => return Err(AskedError::DocumentType),
                Event::Eof if depth == 0 => break,
                Event::Eof => return Err(AskedError::Form),
                _ => continue,
            };
            let namespace = match resolved {
                ResolveResult::Bound(namespace) => namespace.as_ref().to_vec(),
                ResolveResult::Unbound => vec![],
                ResolveResult::Unknown(_) => return Err(AskedError::Form),
            };
            let text = |bytes: &[u8]| {
                String::from_utf8(bytes.to_vec())
                    .ok()
                    .filter(|text| text.len() <= NAME_MAX)
                    .ok_or(AskedError::Many)
            };
            let namespace = text(&namespace)?;
            let name = text(element.local_name().as_ref())?;
            let is_dav = namespace == DAV;
            match (depth, is_dav, name.as_str()) {
                (0, true, "propfind") => {}
                (0, ..) => return Err(AskedError::Other),
                (1, true, "allprop") => asked = Some(Self::All),
                (1, true, "propname") => asked = Some(Self::Names),
                (1, true, "prop") => {
                    asked = Some(Self::These(vec![]));
                    in_properties = !is_empty;
                }
                (2, ..) if in_properties => {
                    if let Some(Self::These(properties)) = &mut asked {
                        if properties.len() >= PROPERTIES_MAX {
                            return Err(AskedError::Many);
                        }
                        properties.push(Property { namespace, name });
                    }
                }
                _ => {}
            }
            if !is_empty {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(AskedError::Deep);
                }
            }
        }
        asked.ok_or(AskedError::Other)
    }

    /// Is this among what is asked for by name?
    pub fn names(&self, namespace: &str, name: &str) -> bool {
        let is_it = |one: &Property| one.namespace == namespace && one.name == name;
        matches!(self, Self::These(properties) if properties.iter().any(is_it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn these(of: &[(&str, &str)]) -> Asked {
        let property = |&(namespace, name): &(&str, &str)| Property {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Asked::These(of.iter().map(property).collect())
    }

    #[test]
    fn bodies_of_stock_clients() {
        // davix, with the grid's modes.
        let davix = br#"<?xml version="1.0" encoding="utf-8" ?><D:propfind xmlns:D="DAV:"
            xmlns:L="LCGDM:"><D:prop><D:displayname/><D:getcontentlength></D:getcontentlength>
            <L:mode/></D:prop></D:propfind>"#;
        let wanted = [("DAV:", "displayname"), ("DAV:", "getcontentlength"), ("LCGDM:", "mode")];
        assert_eq!(Asked::parse(davix).unwrap(), these(&wanted));
        let plain = br#"<propfind xmlns="DAV:"><prop><x xmlns="urn:a"/><y xmlns=""/></prop>
            </propfind>"#;
        assert_eq!(Asked::parse(plain).unwrap(), these(&[("urn:a", "x"), ("", "y")]));
        assert_eq!(Asked::parse(b"").unwrap(), Asked::All);
        assert_eq!(Asked::parse(b"<propfind xmlns='DAV:'><allprop/></propfind>"), Ok(Asked::All));
        let names = Asked::parse(b"<propfind xmlns='DAV:'><propname/></propfind>");
        assert_eq!(names, Ok(Asked::Names));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let entity = b"<!DOCTYPE x [<!ENTITY a 'b'>]><propfind xmlns='DAV:'><prop/></propfind>";
        assert_eq!(Asked::parse(entity), Err(AskedError::DocumentType));
        for wrong in [
            &b"<propfind xmlns='DAV:'><prop></propfind>"[..],
            b"<propfind xmlns='DAV:'><prop>",
            b"<a:propfind><a:prop/></a:propfind>",
            b"\xff\xfe",
        ] {
            assert_eq!(Asked::parse(wrong), Err(AskedError::Form), "{wrong:?}");
        }
        for other in [&b"<propfind/>"[..], b"<lockinfo xmlns='DAV:'/>", b"words"] {
            assert_eq!(Asked::parse(other), Err(AskedError::Other), "{other:?}");
        }
        let many = "<a/>".repeat(PROPERTIES_MAX + 1);
        let many = format!("<propfind xmlns='DAV:'><prop>{many}</prop></propfind>");
        assert_eq!(Asked::parse(many.as_bytes()), Err(AskedError::Many));
        let deep = format!("<propfind xmlns='DAV:'>{}", "<a>".repeat(20));
        assert_eq!(Asked::parse(deep.as_bytes()), Err(AskedError::Deep));
    }

    proptest! {
        #[test]
        fn nonsense_ends(text in "[<>/a-zD:=' !\\[\\]&;?-]{0,80}") {
            let _ = Asked::parse(text.as_bytes());
        }
    }
}
