//! `/metrics`: what this node counted, for Prometheus and whatever else reads OpenMetrics. It answers in every state of the node.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::Api;
use crate::server::metrics;

pub(super) async fn show(State(api): State<Api>) -> impl IntoResponse {
    if let Ok(service) = api.running() {
        service.consensus.end_former_windows();
    }
    let head = [(CONTENT_TYPE, metrics::CONTENT_TYPE)];
    (head, api.shared.metrics.text())
}
