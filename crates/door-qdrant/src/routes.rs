//! Every endpoint, in one table: method, path, what the key must allow, who answers.
//!
//! What Qdrant's API has and is not built here stands in the table too, so that it answers 501 by name.

use crate::cors;
use crate::errors::HttpError;
use crate::handlers::aliases;
use crate::handlers::collections;
use crate::handlers::indexes;
use crate::handlers::memory;
use crate::handlers::plan;
use crate::handlers::points;
use crate::handlers::query;
use crate::handlers::service;
use crate::handlers::service::not_implemented;
use crate::handlers::writes;
use crate::request::call::Route;
use crate::request::keys::Access::{Open, Read, Write};
use crate::request::state::{DoorInner, Params, unknown_method, unknown_path};
use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use std::sync::Arc;
use std::time::Duration;

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
    GET "/collections/{collection_name}/optimizations" Read not_implemented;
    GET "/collections/{collection_name}/memory" Read not_implemented;
    PUT "/collections/{collection_name}/vectors/{vector_name}" Write not_implemented;
    DELETE "/collections/{collection_name}/vectors/{vector_name}" Write not_implemented;
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
    POST "/collections/{collection_name}/points/query/groups" Read not_implemented;
    POST "/collections/{collection_name}/points/search" Read query::search;
    POST "/collections/{collection_name}/points/search/batch" Read query::search_batch;
    POST "/collections/{collection_name}/points/search/groups" Read not_implemented;
    POST "/collections/{collection_name}/points/search/matrix/pairs" Read not_implemented;
    POST "/collections/{collection_name}/points/search/matrix/offsets" Read not_implemented;
    POST "/collections/{collection_name}/points/recommend" Read not_implemented;
    POST "/collections/{collection_name}/points/recommend/batch" Read not_implemented;
    POST "/collections/{collection_name}/points/recommend/groups" Read not_implemented;
    POST "/collections/{collection_name}/points/discover" Read not_implemented;
    POST "/collections/{collection_name}/points/discover/batch" Read not_implemented;

    GET "/collections/{collection_name}/snapshots" Read not_implemented;
    POST "/collections/{collection_name}/snapshots" Write not_implemented;
    POST "/collections/{collection_name}/snapshots/upload" Write not_implemented;
    PUT "/collections/{collection_name}/snapshots/recover" Write not_implemented;
    GET "/collections/{collection_name}/snapshots/{snapshot_name}" Read not_implemented;
    DELETE "/collections/{collection_name}/snapshots/{snapshot_name}" Write not_implemented;
    GET "/snapshots" Read not_implemented;
    POST "/snapshots" Write not_implemented;
    GET "/snapshots/{snapshot_name}" Read not_implemented;
    DELETE "/snapshots/{snapshot_name}" Write not_implemented;

    GET "/collections/{collection_name}/shards" Read not_implemented;
    PUT "/collections/{collection_name}/shards" Write not_implemented;
    POST "/collections/{collection_name}/shards/delete" Write not_implemented;
    GET "/collections/{collection_name}/shards/{shard_id}/snapshot" Read not_implemented;
    GET "/collections/{collection_name}/shards/{shard_id}/snapshots" Read not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshots" Write not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshots/upload" Write not_implemented;
    PUT "/collections/{collection_name}/shards/{shard_id}/snapshots/recover" Write not_implemented;
    GET "/collections/{collection_name}/shards/{shard_id}/snapshots/{snapshot_name}" Read not_implemented;
    DELETE "/collections/{collection_name}/shards/{shard_id}/snapshots/{snapshot_name}" Write not_implemented;
    POST "/collections/{collection_name}/truncate_unapplied_wal" Write not_implemented;
    GET "/collections/{collection_name}/shards/{shard_id}/snapshot/partial/manifest" Read not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshot/partial/create" Write not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshot/partial/recover" Write not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/snapshot/partial/recover_from" Write not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/points" Read not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/points/scroll" Read not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/points/count" Read not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/cleanup" Write not_implemented;
    GET "/collections/{collection_name}/shards/{shard_id}/recovery_point" Read not_implemented;
    POST "/collections/{collection_name}/shards/{shard_id}/truncate_unapplied_wal" Write not_implemented;
    GET "/collections/{collection_name}/cluster" Read not_implemented;
    POST "/collections/{collection_name}/cluster" Write not_implemented;
    GET "/cluster" Read service::cluster;
    GET "/cluster/telemetry" Read not_implemented;
    POST "/cluster/recover" Write not_implemented;
    DELETE "/cluster/peer/{peer_id}" Write not_implemented;
    GET "/quotas" Read not_implemented;
    PUT "/quotas" Write not_implemented;
    GET "/issues" Read not_implemented;
    DELETE "/issues" Write not_implemented;
    GET "/profiler/slow_requests" Read not_implemented;
    POST "/audit/logs" Read not_implemented;
    GET "/logger" Read not_implemented;
    POST "/logger" Write not_implemented;
    GET "/debugger" Read not_implemented;
    PATCH "/debugger" Write not_implemented;
    GET "/stacktrace" Read not_implemented;
    GET "/cluster/metadata/keys" Read not_implemented;
    GET "/cluster/metadata/keys/{key}" Read not_implemented;
    PUT "/cluster/metadata/keys/{key}" Write not_implemented;
};

/// A path that stands for itself under one method only. A collection may have that name, and is reached by it under all others.
const ALSO_A_NAME: &str = "/collections/aliases";
const COLLECTION: &str = "/collections/{collection_name}";

/// The router of the table.
pub fn router(shared: &Arc<DoorInner>) -> Router {
    let mut router = Router::new();
    for (index, route) in ROUTES.iter().enumerate() {
        let shared = shared.clone();
        let handler = move |request: Request| answer(shared.clone(), index, route, request);
        let method =
            Method::from_bytes(route.method.as_bytes()).ok().and_then(|method| MethodFilter::try_from(method).ok());
        // Every method of the table is a known one; a test holds that.
        let method = method.unwrap_or(MethodFilter::TRACE);
        if route.path == COLLECTION {
            router = router.route(ALSO_A_NAME, on(method, handler.clone()));
        }
        router = router.route(route.path, on(method, handler));
    }
    let router = router.fallback(unknown_path).method_not_allowed_fallback(unknown_method);
    match shared.host.cors.as_deref().map(HeaderValue::from_str) {
        Some(Ok(origin)) => router.layer(from_fn_with_state(origin, cors::allow)),
        // Options are checked where they are read.
        _ => router,
    }
}

async fn answer(shared: Arc<DoorInner>, index: usize, route: &'static Route, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut params = Params::new();
    if route.path == COLLECTION && parts.uri.path() == ALSO_A_NAME {
        params.extend(ALSO_A_NAME.rsplit('/').next().map(str::to_owned));
    } else if route.path.contains('{') {
        match RawPathParams::from_request_parts(&mut parts, &()).await {
            Ok(raw) => params.extend(raw.iter().map(|(_, value)| value.to_owned())),
            Err(_) => {
                crate::body::drain(body).await;
                let message = "Format error in path parameters: not UTF-8";
                return HttpError::new(StatusCode::BAD_REQUEST, message).response(Duration::ZERO);
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
