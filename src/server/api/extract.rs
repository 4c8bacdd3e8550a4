//! What handlers take from a request, parsed once: a name, a query, a deadline, a body.

use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use futures::pending;
use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};

use super::error::ApiError;
use super::keys::KeyText;
use super::{Api, Service, json};
use crate::sequence::SequenceName;

/// The largest body, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024;
/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The deadline unless the request names one.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// The shortest deadline a request may ask for.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// The longest deadline a request may ask for.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// The sequence in the path.
pub(super) struct Name(pub(super) SequenceName);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Ok(Path(text)) = Path::<String>::from_request_parts(parts, state).await else {
            return Err(ApiError::NameEncoding);
        };
        text.parse().map(Self).map_err(ApiError::InvalidName)
    }
}

/// The query, with nothing in it that the route does not know.
pub(super) struct Options<Q>(pub(super) Q);

impl<S: Send + Sync, Q: DeserializeOwned> FromRequestParts<S> for Options<Q> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(options)) => Ok(Self(options)),
            Err(rejection) => Err(ApiError::InvalidQuery {
                reason: deepest(&rejection),
            }),
        }
    }
}

/// A query of a request that changes something: each has a deadline.
pub(super) trait WriteOptions {
    /// The one it names.
    fn timeout(&self) -> Timeout;
}

/// A request that changes something, read whole. Every handler of one begins with it.
pub(super) struct Write<Q, B> {
    pub(super) service: Arc<Service>,
    pub(super) deadline: Instant,
    pub(super) options: Q,
    pub(super) headers: HeaderMap,
    pub(super) key: Option<KeyText>,
    pub(super) body: B,
}

impl<Q, B> FromRequest<Api> for Write<Q, B>
where
    Q: DeserializeOwned + WriteOptions + Send,
    B: DeserializeOwned + Default,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let Options(options) = Options::<Q>::from_request_parts(&mut parts, api).await?;
        let deadline = options.timeout().deadline();
        let service = api.service()?;
        let key = KeyText::of(&parts.headers)?;
        Ok(Self {
            service,
            deadline,
            options,
            key,
            body: read_json(&parts.headers, body).await?,
            headers: parts.headers,
        })
    }
}

impl<Q, B> Write<Q, B> {
    /// To ignore a key would promise an answer that is not kept (I4).
    pub(super) fn refuse_key(&self) -> Result<(), ApiError> {
        match self.key {
            Some(_) => Err(ApiError::NoKey),
            None => Ok(()),
        }
    }
}

/// The body of a request that has none.
#[derive(Debug, Default)]
pub(super) struct NoBody;

impl<'de> Deserialize<'de> for NoBody {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(de::Error::custom("this request has no body"))
    }
}

/// How long a request may take, as its query names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Timeout(Duration);

impl Timeout {
    /// The moment by which the request is answered.
    pub(super) fn deadline(self) -> Instant {
        Instant::now() + self.0
    }
}

impl Default for Timeout {
    fn default() -> Self {
        Self(TIMEOUT_DEFAULT)
    }
}

impl TryFrom<String> for Timeout {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let millis = text.strip_suffix("ms").map(|digits| (digits, 1));
        let seconds = || text.strip_suffix('s').map(|digits| (digits, 1_000));
        let parsed = millis.or_else(seconds).and_then(|(digits, unit)| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = digits.parse::<u64>().ok().filter(|_| plain)?;
            Some(Duration::from_millis(number.checked_mul(unit)?))
        });
        parsed
            .filter(|timeout| TIMEOUT_MIN <= *timeout && *timeout <= TIMEOUT_MAX)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not 10ms to 60s, such as 500ms or 5s"))
    }
}

/// How fresh a read has to be, as its query names it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Consistency {
    /// It shows everything that was answered before it was sent (I6).
    #[default]
    Linearizable,
    /// It shows what this node has applied so far.
    Local,
}

impl TryFrom<String> for Consistency {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match &*text {
            "linearizable" => Ok(Self::Linearizable),
            "local" => Ok(Self::Local),
            _ => Err(format!("{text:?} is not linearizable or local")),
        }
    }
}

/// The JSON body, or the default where there is none.
async fn read_json<T: DeserializeOwned + Default>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, ApiError> {
    let bytes = read(headers, body).await?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    refuse_other_media(headers)?;
    json::parse(&bytes)
}

/// Refuses a body that says of itself that it is not JSON. What common clients say of a body they know nothing about
/// is let through: the parser decides.
fn refuse_other_media(headers: &HeaderMap) -> Result<(), ApiError> {
    let refuse = |value: &HeaderValue, what| {
        let text = String::from_utf8_lossy(value.as_bytes());
        Err(ApiError::UnsupportedMediaType {
            reason: format!("its {what} is {text:?}"),
        })
    };
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    if let Some(other) = types.find(|value| !may_be_json(value)) {
        return refuse(other, "content type");
    }
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    match encodings.find(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        Some(other) => refuse(other, "content encoding"),
        None => Ok(()),
    }
}

fn may_be_json(content_type: &HeaderValue) -> bool {
    let text = content_type.to_str().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    let known = [
        "application/json",
        // What curl and urllib say by themselves, and what fetch and .NET do.
        "application/x-www-form-urlencoded",
        "text/plain",
    ];
    known.contains(&essence.as_str())
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: usize| BODY_BYTES_MAX < length) {
        return Err(ApiError::BodyTooLarge {
            limit: BODY_BYTES_MAX,
        });
    }
    match all_of(body).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            let reason = deepest(&error);
            if reason == "length limit exceeded" {
                return Err(ApiError::BodyTooLarge {
                    limit: BODY_BYTES_MAX,
                });
            }
            Err(ApiError::InvalidBody { reason })
        }
        Err(_elapsed) => Err(ApiError::InvalidBody {
            reason: "the body did not arrive within 10 s".to_owned(),
        }),
    }
}

/// The body's bytes. A timer is set where they have not come with the head.
async fn all_of(body: Body) -> Result<Result<Bytes, axum::Error>, Elapsed> {
    let mut reading = pin!(axum::body::to_bytes(body, BODY_BYTES_MAX));
    let first = poll_fn(|context| {
        let first = reading.as_mut().poll(context);
        // The connection looks for the body once it is asked for, and then this is asked again.
        if first.is_pending() {
            context.waker().wake_by_ref();
        }
        Poll::Ready(first)
    });
    match first.await {
        Poll::Ready(read) => return Ok(read),
        Poll::Pending => pending!(),
    }
    timeout(BODY_TIMEOUT, reading).await
}

/// Whether the client asks for plain text.
pub(super) fn wants_text(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.trim_start().starts_with("text/plain"))
}

/// The innermost cause: what serde says, without the layers' words around it.
fn deepest(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_waited_for_ten_seconds() {
        let begun = Instant::now();
        let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();

        let read = read(&HeaderMap::new(), Body::from_stream(never)).await;

        let error = read.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the body is not understood: the body did not arrive within 10 s"
        );
        assert_eq!(begun.elapsed(), BODY_TIMEOUT);
    }

    #[test]
    fn a_consistency_is_one_of_two_words() {
        let parse = |text: &str| Consistency::try_from(text.to_owned());

        assert_eq!(parse("local"), Ok(Consistency::Local));
        assert_eq!(parse("linearizable"), Ok(Consistency::Linearizable));
        assert_eq!(
            parse("Local").unwrap_err(),
            "\"Local\" is not linearizable or local"
        );
    }

    #[test]
    fn a_body_may_say_that_it_is_json_or_what_clients_say_by_themselves() {
        for (text, accepted) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/merge-patch+json", true),
            ("application/x-www-form-urlencoded", true),
            ("text/plain;charset=UTF-8", true),
            ("", false),
            ("text/xml", false),
            ("text/x+json", false),
            ("multipart/form-data; boundary=json", false),
            ("application/jsonp", false),
            ("application/x-ndjson", false),
        ] {
            let value = HeaderValue::from_static(text);

            assert_eq!(may_be_json(&value), accepted, "{text:?}");
        }
    }

    #[test]
    fn a_timeout_is_digits_and_a_unit_within_bounds() {
        for (text, millis) in [("10ms", 10), ("500ms", 500), ("5s", 5_000), ("60s", 60_000)] {
            let timeout = Timeout::try_from(text.to_owned()).unwrap();

            assert_eq!(timeout, Timeout(Duration::from_millis(millis)));
        }
        for text in [
            "",
            "s",
            "5",
            "9ms",
            "61s",
            "-1s",
            "+5s",
            "1.5s",
            "5m",
            "99999999999999999999s",
        ] {
            assert_eq!(
                Timeout::try_from(text.to_owned()).unwrap_err(),
                format!("{text:?} is not 10ms to 60s, such as 500ms or 5s")
            );
        }
    }
}
