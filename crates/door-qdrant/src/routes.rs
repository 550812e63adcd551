//! Every endpoint, in one table: method, path, what the key must allow, who answers.
//!
//! What Qdrant's API has and is not built here stands in the table too, so that it answers 501 by name.

use crate::answer::Answer;
use crate::call::Call;
use crate::door::{Params, Shared, unknown_method, unknown_path};
use crate::errors::{Outcome, Refusal};
use crate::keys::Access::{self, Open, Read, Write};
use crate::service::unbuilt;
use crate::{aliases, collections, cors, indexes, memory, plan, points, query, service, writes};
use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Outcome<Answer>> + Send>>;

pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub access: Access,
    pub handler: Handler,
}

macro_rules! routes {
    ($($method:ident $path:literal $access:ident $handler:path;)*) => {
        &[$(Route {
            method: stringify!($method),
            path: $path,
            access: $access,
            handler: |call| Box::pin($handler(call)),
        }),*]
    };
}

pub const ROUTES: &[Route] = routes! {
    GET "/" Open service::title;
    GET "/healthz" Open service::healthz;
    GET "/livez" Open service::livez;
    GET "/readyz" Open service::readyz;
    GET "/telemetry" Read service::telemetry;
    GET "/metrics" Read service::metrics;
    GET "/memory" Read memory::get;
    PUT "/memory" Write memory::put;
    POST "/memory/plan" Write plan::post;

    GET "/collections" Read collections::list;
    GET "/collections/{collection_name}" Read collections::get;
    PUT "/collections/{collection_name}" Write collections::create;
    PATCH "/collections/{collection_name}" Write collections::change;
    DELETE "/collections/{collection_name}" Write collections::delete;
    GET "/collections/{collection_name}/exists" Read collections::exists;
    GET "/collections/{collection_name}/optimizations" Read unbuilt;
    GET "/collections/{collection_name}/memory" Read unbuilt;
    PUT "/collections/{collection_name}/vectors/{vector_name}" Write unbuilt;
    DELETE "/collections/{collection_name}/vectors/{vector_name}" Write unbuilt;
    PUT "/collections/{collection_name}/index" Write indexes::create;
    DELETE "/collections/{collection_name}/index/{field_name}" Write indexes::delete;

    POST "/collections/aliases" Write aliases::change;
    GET "/collections/{collection_name}/aliases" Read aliases::of_collection;
    GET "/aliases" Read aliases::list;

    PUT "/collections/{collection_name}/points" Write writes::upsert;
    POST "/collections/{collection_name}/points" Read points::retrieve;
    GET "/collections/{collection_name}/points/{id}" Read points::get;
    POST "/collections/{collection_name}/points/delete" Write writes::delete;
    PUT "/collections/{collection_name}/points/vectors" Write writes::update_vectors;
    POST "/collections/{collection_name}/points/vectors/delete" Write writes::delete_vectors;
    POST "/collections/{collection_name}/points/payload" Write writes::set_payload;
    PUT "/collections/{collection_name}/points/payload" Write writes::overwrite_payload;
    POST "/collections/{collection_name}/points/payload/delete" Write writes::delete_payload;
    POST "/collections/{collection_name}/points/payload/clear" Write writes::clear_payload;
    POST "/collections/{collection_name}/points/batch" Write writes::several;
    POST "/collections/{collection_name}/points/scroll" Read points::scroll;
    POST "/collections/{collection_name}/points/count" Read points::count;
    POST "/collections/{collection_name}/facet" Read points::facet;

    POST "/collections/{collection_name}/points/query" Read query::query;
    POST "/collections/{collection_name}/points/query/batch" Read query::query_batch;
    POST "/collections/{collection_name}/points/query/groups" Read unbuilt;
    POST "/collections/{collection_name}/points/search" Read query::search;
    POST "/collections/{collection_name}/points/search/batch" Read query::search_batch;
    POST "/collections/{collection_name}/points/search/groups" Read unbuilt;
    POST "/collections/{collection_name}/points/search/matrix/pairs" Read unbuilt;
    POST "/collections/{collection_name}/points/search/matrix/offsets" Read unbuilt;
    POST "/collections/{collection_name}/points/recommend" Read unbuilt;
    POST "/collections/{collection_name}/points/recommend/batch" Read unbuilt;
    POST "/collections/{collection_name}/points/recommend/groups" Read unbuilt;
    POST "/collections/{collection_name}/points/discover" Read unbuilt;
    POST "/collections/{collection_name}/points/discover/batch" Read unbuilt;

    GET "/collections/{collection_name}/snapshots" Read unbuilt;
    POST "/collections/{collection_name}/snapshots" Write unbuilt;
    POST "/collections/{collection_name}/snapshots/upload" Write unbuilt;
    PUT "/collections/{collection_name}/snapshots/recover" Write unbuilt;
    GET "/collections/{collection_name}/snapshots/{snapshot_name}" Read unbuilt;
    DELETE "/collections/{collection_name}/snapshots/{snapshot_name}" Write unbuilt;
    GET "/snapshots" Read unbuilt;
    POST "/snapshots" Write unbuilt;
    GET "/snapshots/{snapshot_name}" Read unbuilt;
    DELETE "/snapshots/{snapshot_name}" Write unbuilt;

    GET "/collections/{collection_name}/shards" Read unbuilt;
    PUT "/collections/{collection_name}/shards" Write unbuilt;
    POST "/collections/{collection_name}/shards/delete" Write unbuilt;
    GET "/collections/{collection_name}/shards/{shard_id}/snapshot" Read unbuilt;
    GET "/collections/{collection_name}/shards/{shard_id}/snapshots" Read unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshots" Write unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshots/upload" Write unbuilt;
    PUT "/collections/{collection_name}/shards/{shard_id}/snapshots/recover" Write unbuilt;
    GET "/collections/{collection_name}/shards/{shard_id}/snapshots/{snapshot_name}" Read unbuilt;
    DELETE "/collections/{collection_name}/shards/{shard_id}/snapshots/{snapshot_name}" Write unbuilt;
    POST "/collections/{collection_name}/truncate_unapplied_wal" Write unbuilt;
    GET "/collections/{collection_name}/shards/{shard_id}/snapshot/partial/manifest" Read unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshot/partial/create" Write unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshot/partial/recover" Write unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshot/partial/recover_from" Write unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/points" Read unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/points/scroll" Read unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/points/count" Read unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/cleanup" Write unbuilt;
    GET "/collections/{collection_name}/shards/{shard_id}/recovery_point" Read unbuilt;
    POST "/collections/{collection_name}/shards/{shard_id}/truncate_unapplied_wal" Write unbuilt;
    GET "/collections/{collection_name}/cluster" Read unbuilt;
    POST "/collections/{collection_name}/cluster" Write unbuilt;
    GET "/cluster" Read service::cluster;
    GET "/cluster/telemetry" Read unbuilt;
    POST "/cluster/recover" Write unbuilt;
    DELETE "/cluster/peer/{peer_id}" Write unbuilt;
    GET "/quotas" Read unbuilt;
    PUT "/quotas" Write unbuilt;
    GET "/issues" Read unbuilt;
    DELETE "/issues" Write unbuilt;
    GET "/profiler/slow_requests" Read unbuilt;
    POST "/audit/logs" Read unbuilt;
    GET "/logger" Read unbuilt;
    POST "/logger" Write unbuilt;
    GET "/debugger" Read unbuilt;
    PATCH "/debugger" Write unbuilt;
    GET "/stacktrace" Read unbuilt;
    GET "/cluster/metadata/keys" Read unbuilt;
    GET "/cluster/metadata/keys/{key}" Read unbuilt;
    PUT "/cluster/metadata/keys/{key}" Write unbuilt;
};

/// The router of the table.
pub fn router(shared: &Arc<Shared>) -> Router {
    let mut router = Router::new();
    for (index, route) in ROUTES.iter().enumerate() {
        let shared = shared.clone();
        let handler = move |request: Request| answer(shared.clone(), index, route, request);
        let method =
            Method::from_bytes(route.method.as_bytes()).ok().and_then(|method| MethodFilter::try_from(method).ok());
        // Every method of the table is a known one; a test holds that.
        router = router.route(route.path, on(method.unwrap_or(MethodFilter::TRACE), handler));
    }
    let router = router.fallback(unknown_path).method_not_allowed_fallback(unknown_method);
    match shared.host.cors.as_deref().map(HeaderValue::from_str) {
        Some(Ok(origin)) => router.layer(from_fn_with_state(origin, cors::allow)),
        // Options are checked where they are read.
        _ => router,
    }
}

async fn answer(shared: Arc<Shared>, index: usize, route: &'static Route, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut params = Params::new();
    if route.path.contains('{') {
        match RawPathParams::from_request_parts(&mut parts, &()).await {
            Ok(raw) => params.extend(raw.iter().map(|(_, value)| value.to_owned())),
            Err(_) => {
                crate::body::drain(body).await;
                let message = "Format error in path: not UTF-8";
                return Refusal::new(StatusCode::BAD_REQUEST, message).response(Duration::ZERO);
            }
        }
    }
    shared.serve(index, route, params, Request::from_parts(parts, body)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_known_and_routes_stand_once() {
        let mut seen = std::collections::BTreeSet::new();
        for route in ROUTES {
            let method = Method::from_bytes(route.method.as_bytes()).unwrap();
            assert!(MethodFilter::try_from(method).is_ok());
            assert!(seen.insert((route.path, route.method)), "{} {}", route.method, route.path);
            assert!(route.access != Write || route.method != "GET");
        }
    }
}
