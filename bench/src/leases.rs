//! How a worker asks over HTTP: nodes of Highwater, and the handler in memory.

use std::net::SocketAddr;

use rand::Rng as _;
use serde::Deserialize;

use crate::http::{HttpConnection, request};
use crate::load::{Answer, Connection, Fault, Granted, Source};

/// Where workers ask: the first at the first address, the next at the next.
pub(crate) struct HttpSource {
    addresses: Vec<SocketAddr>,
    form: Form,
}

/// What each request asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    /// One lease of this sequence.
    One(&'static str),
    /// So many leases of this sequence.
    Several(&'static str, u32),
    /// One lease of one of so many sequences, by chance.
    Spread(u32),
    /// The handler's next number.
    Count,
}

/// What the sequences are called that requests are spread over.
pub(crate) fn spread_name(number: u32) -> String {
    format!("s{number}")
}

impl Form {
    /// A request, and the number of the sequence that it asks for.
    fn request(self) -> (u32, Vec<u8>) {
        const ONE: &str = r#"{"count":1}"#;
        let lease = |name: &str| request("POST", &format!("/v1/sequences/{name}/leases"), ONE);
        match self {
            Self::One(name) => (0, lease(name)),
            Self::Several(name, leases) => {
                let one = format!(r#"{{"sequence":"{name}","count":1}}"#);
                let all: Vec<&str> = (0..leases).map(|_| one.as_str()).collect();
                (
                    0,
                    request("POST", "/v1/leases", &format!("[{}]", all.join(","))),
                )
            }
            Self::Spread(sequences) => {
                let sequence = rand::rng().random_range(0..sequences);
                (sequence, lease(&spread_name(sequence)))
            }
            Self::Count => (0, request("POST", "/", ONE)),
        }
    }
}

impl HttpSource {
    pub(crate) fn new(addresses: Vec<SocketAddr>, form: Form) -> Self {
        Self { addresses, form }
    }
}

impl Source for HttpSource {
    fn connect(&self, worker: usize, attempt: usize) -> Answer<'_, Box<dyn Connection>> {
        Box::pin(async move {
            let turn = worker
                .wrapping_add(attempt)
                .checked_rem(self.addresses.len());
            let address = turn.and_then(|turn| self.addresses.get(turn));
            let address = address.ok_or_else(|| Fault::lost("nobody to ask"))?;
            let lessee = Lessee {
                http: HttpConnection::open(*address).await?,
                form: self.form,
                request: self.form.request(),
            };
            Ok(Box::new(lessee) as Box<dyn Connection>)
        })
    }
}

struct Lessee {
    http: HttpConnection,
    form: Form,
    request: (u32, Vec<u8>),
}

/// The part of an answer that is verified.
#[derive(Deserialize)]
struct Range {
    first: u64,
    last: u64,
}

#[derive(Deserialize)]
struct Ranges {
    grants: Vec<Range>,
}

impl Connection for Lessee {
    fn ask<'a>(&'a mut self, granted: &'a mut Vec<Granted>) -> Answer<'a, ()> {
        Box::pin(async {
            if let Form::Spread(_) = self.form {
                self.request = self.form.request();
            }
            let (sequence, request) = &self.request;
            let (status, body) = self.http.exchange(request).await?;
            if !(200..300).contains(&status) {
                // As a worker does whose node cannot serve it: it turns to the next.
                return Err(Fault::lost(format!("status {status}")));
            }
            let ranges = match self.form {
                Form::Several(..) => serde_json::from_slice::<Ranges>(body).map(|body| body.grants),
                _ => serde_json::from_slice(body).map(|range| vec![range]),
            };
            let ranges = ranges.map_err(|error| Fault::lost(error.to_string()))?;
            granted.extend(ranges.into_iter().map(|range: Range| Granted {
                sequence: *sequence,
                first: range.first,
                last: range.last,
            }));
            Ok(())
        })
    }
}
