//! How a request gets to a node: HTTP over TCP, or over the network of a simulated machine.

use reqwest::{RequestBuilder, Response};

use super::answer::root_cause;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// There was no connection: nothing was sent.
    NotConnected { cause: String },
    /// It may have been sent.
    Lost { cause: String },
}

impl From<reqwest::Error> for SendError {
    fn from(error: reqwest::Error) -> Self {
        let cause = root_cause(&error);
        if error.is_connect() {
            Self::NotConnected { cause }
        } else {
            Self::Lost { cause }
        }
    }
}

/// Sends a request and waits for the head of its answer.
pub(super) async fn send(request: RequestBuilder) -> Result<Response, SendError> {
    #[cfg(test)]
    if turmoil::in_simulation() {
        return simulated::send(request.build()?).await;
    }
    Ok(request.send().await?)
}

#[cfg(test)]
pub(crate) mod simulated {
    use std::time::Duration;

    use http_body_util::{BodyExt, Full};
    use hyper::body::Bytes;
    use hyper_util::rt::TokioIo;
    use reqwest::{Request, Response};
    use tokio::time::timeout;
    use turmoil::net::TcpStream;

    use super::SendError;

    const CONNECTS_WITHIN: Duration = Duration::from_secs(1);

    /// Each request has a connection of its own, so what a network loses of one is lost to no other.
    pub(crate) async fn send(request: Request) -> Result<Response, SendError> {
        let not_connected = |cause: &dyn ToString| SendError::NotConnected {
            cause: cause.to_string(),
        };
        let lost = |error: hyper::Error| SendError::Lost {
            cause: error.to_string(),
        };
        let connecting = timeout(CONNECTS_WITHIN, TcpStream::connect(host(&request)));
        let stream = match connecting.await {
            Ok(connected) => connected.map_err(|error| not_connected(&error))?,
            Err(elapsed) => return Err(not_connected(&elapsed)),
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(lost)?;
        let exchange = async move {
            let answer = sender.send_request(hyper_request(request)).await?;
            let (head, body) = answer.into_parts();
            Ok(http::Response::from_parts(
                head,
                body.collect().await?.to_bytes(),
            ))
        };
        // The connection ends with its exchange, which drops the sender.
        let (answer, _) = tokio::join!(exchange, connection);
        Ok(answer.map_err(lost)?.into())
    }

    fn hyper_request(request: Request) -> http::Request<Full<Bytes>> {
        let url = request.url();
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let body = request.body().and_then(|body| body.as_bytes());
        let body = Full::new(Bytes::copy_from_slice(body.unwrap_or_default()));
        let mut sent = http::Request::new(body);
        *sent.method_mut() = request.method().clone();
        *sent.uri_mut() = target.parse().unwrap();
        *sent.headers_mut() = request.headers().clone();
        let host = host(&request).parse().unwrap();
        sent.headers_mut().insert("host", host);
        sent
    }

    fn host(request: &Request) -> String {
        let url = request.url();
        format!("{}:{}", url.host_str().unwrap(), url.port().unwrap())
    }
}
