//! What has to hold of every decoder whatever bytes it is given: the bodies of the fuzz targets in `fuzz/`, and of the
//! property tests beside this file.

use bytes::Bytes;
use towpath_domain::filter::Filter;
use towpath_domain::{TenantId, Timestamp, trace};
use towpath_traces::accept::{self, Request, Route};
use towpath_traces::body::Limits;
use towpath_traces::otlp::{self, Format, Signal};

/// Of the boundary of every multipart body here.
pub const CONTENT_TYPE: &str = "multipart/form-data; boundary=b";

/// A filter is understood, twice alike, or refused at one of its characters.
pub fn filter(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Filter::parse(&text) {
        Ok(filter) => {
            let (first, last) = filter.start_bounds();
            assert!(first.is_none_or(|first| first.micros() > i64::MIN) || last.is_some());
            let _ = filter.needs_feedback();
            assert_eq!(Filter::parse(&text).as_ref(), Ok(&filter));
        }
        Err(error) => {
            let end = text.chars().count() + 1;
            assert!(
                (1..=end).contains(&error.position),
                "{} of {end}: {}",
                error.position,
                error.message
            );
            assert!(!error.message.is_empty());
        }
    }
}

/// A link that is read is written so that it reads the same.
pub fn dotted_order(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for link in trace::dotted_order_parts(&text).flatten() {
        assert_eq!(trace::last_part(&trace::format_part(&link)), Some(link));
    }
}

/// What is accepted can be read again, whole: after that no one is there to be told that it cannot.
pub fn multipart(data: &[u8]) {
    for (content_type, encoding) in [
        (CONTENT_TYPE, None),
        (CONTENT_TYPE, Some("zstd")),
        (CONTENT_TYPE, Some("gzip")),
    ] {
        accepted(Route::Multipart, content_type, encoding, data);
    }
    accepted(Route::Batch, "application/json", None, data);
    accepted(Route::Run, "application/json", None, data);
    accepted(Route::Feedback, "application/json", None, data);
}

/// Spans and log records that are taken become a body that can be read again; the others are told of.
pub fn otlp(data: &[u8]) {
    for format in [Format::Protobuf, Format::Json] {
        items(Signal::Traces, format, data);
        items(Signal::Logs, format, data);
    }
}

/// Operations and feedback of a request that are taken, and items that are not.
pub fn items(signal: Signal, format: Format, data: &[u8]) -> Option<(usize, u64)> {
    let request = otlp::Request {
        tenant: TenantId::nil(),
        signal,
        format,
        body: data,
        project: Some("spans"),
        received_at: Timestamp::from_micros(0),
    };
    let (accepted, rejected) = otlp::accept(&request, &limits()).ok()?;
    let contents = accept::read(&accepted.frame, &Limits::NONE).expect("what was accepted can be read");
    assert_eq!(contents.operations.len(), accepted.operations);
    assert_eq!(contents.feedback.len(), accepted.feedback);
    assert_eq!(rejected == otlp::RejectedItems::default(), rejected.count() == 0);
    assert!(!otlp::response(signal, format, &rejected).is_empty() || rejected.count() == 0);
    Some((accepted.operations + accepted.feedback, rejected.count()))
}

fn limits() -> Limits {
    Limits {
        decoded_bytes: 1 << 22,
        ..Limits::default()
    }
}

/// Operations of a body that is accepted.
pub fn accepted(route: Route, content_type: &str, content_encoding: Option<&str>, data: &[u8]) -> Option<usize> {
    let request = Request {
        tenant: TenantId::nil(),
        route,
        content_type,
        content_encoding,
        body: Bytes::copy_from_slice(data),
        received_at: Timestamp::from_micros(0),
    };
    let accepted = accept::accept(request, &limits()).ok()?;
    let contents = accept::read(&accepted.frame, &Limits::NONE).expect("what was accepted can be read");
    assert_eq!(contents.operations.len(), accepted.operations);
    assert_eq!(contents.feedback.len(), accepted.feedback);
    assert_eq!(contents.attachments.len(), accepted.attachments);
    let items = accepted.operations + accepted.feedback + accepted.attachments;
    assert_eq!(u32::try_from(items), Ok(accepted.frame.head.items));
    Some(accepted.operations)
}
