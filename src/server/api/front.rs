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
