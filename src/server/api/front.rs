//! What every request passes on its way to its route, and every answer on its way out.
//!
//! It stands around the router and is no layer of it: a layer takes some microseconds of every request.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::{HeaderName, Method, Version};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tower_service::Service;

use super::Api;
use super::error::ApiError;

/// The header that tells which node answered.
const NODE_HEADER: HeaderName = HeaderName::from_static("highwater-node");

/// The routes with what stands around them.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    api: Api,
    routes: Router,
}

impl Front {
    /// These routes with what stands around the API's.
    pub(super) fn new(api: Api, routes: Router) -> Self {
        Self { api, routes }
    }
}

impl<B> Service<Request<B>> for Front
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The router always is.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let api = self.api.clone();
        let bodies = &api.shared.bodies;
        let admitted = one_host(&request).and_then(|()| bodies.admit(request.body()));
        let room = match admitted {
            Ok(room) => room,
            Err(refusal) => {
                return Box::pin(async move { Ok(api.signed(refusal.into_response())) });
            }
        };
        let reads = request.method() == Method::GET;
        let answer = self.routes.call(request.map(Body::new));
        Box::pin(answer.map(move |Ok(answer)| {
            drop(room);
            let answer = if reads {
                api.shared.bodies.hold(answer)
            } else {
                answer
            };
            Ok(api.signed(answer))
        }))
    }
}

impl Api {
    /// The answer with this node's id, once it has one.
    fn signed(&self, mut answer: Response) -> Response {
        if let Some(id) = self.shared.node.get() {
            let id = self.shared.node_text.get_or_init(|| id.get().into());
            answer.headers_mut().insert(NODE_HEADER, id.clone());
        }
        answer
    }
}

/// Refuses a request that two readers could take for two hosts' (RFC 9112 §3.2).
fn one_host<B>(request: &Request<B>) -> Result<(), ApiError> {
    let count = request.headers().get_all(HOST).iter().count();
    if request.version() == Version::HTTP_11 && count != 1 {
        return Err(ApiError::Hosts { count });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::routing::get;
    use tokio::sync::watch;

    use super::*;
    use crate::server::api::bodies::{ANSWERS_BYTES_MAX, SMALL_ANSWER_BYTES_MAX};
    use crate::server::metrics::Metrics;

    const PAGE: usize = 512 * 1024;

    fn front() -> Front {
        let page = || async { vec![b'x'; PAGE] };
        let small = || async { vec![b'x'; SMALL_ANSWER_BYTES_MAX] };
        let routes = Router::new()
            .route("/", get(page).post(page))
            .route("/small", get(small));
        let (_node, service) = watch::channel(None);
        Front::new(
            Api::new(Arc::default(), service, Metrics::default()),
            routes,
        )
    }

    async fn ask(front: &mut Front, method: Method, path: &str) -> Response {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "h");
        let request = request.body(Body::empty()).unwrap();
        front.call(request).await.unwrap()
    }

    #[tokio::test]
    async fn large_answers_beyond_their_budget_are_refused_until_others_are_sent() {
        let mut front = front();
        let mut unsent = Vec::new();
        for _ in 0..ANSWERS_BYTES_MAX / PAGE {
            unsent.push(ask(&mut front, Method::GET, "/").await);
        }

        let refused = ask(&mut front, Method::GET, "/").await;

        assert_eq!(refused.status(), 503);
        let text = axum::body::to_bytes(refused.into_body(), 4096).await;
        let text = String::from_utf8(text.unwrap().to_vec()).unwrap();
        let expected = "large answers of 33554432 bytes are on their way from this node already";
        assert!(text.contains(expected), "{text}");
        // Those to changes are never refused, small ones are not counted.
        assert_eq!(ask(&mut front, Method::POST, "/").await.status(), 200);
        assert_eq!(ask(&mut front, Method::GET, "/small").await.status(), 200);

        let sent = unsent.pop().unwrap();
        assert_eq!(sent.body().size_hint().exact(), Some(PAGE as u64));
        let body = axum::body::to_bytes(sent.into_body(), PAGE).await.unwrap();
        assert_eq!(body.len(), PAGE);
        assert_eq!(ask(&mut front, Method::GET, "/").await.status(), 200);
    }
}
