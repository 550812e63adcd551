//! Pages of another origin may use the door, where the server was told which: `--cors ORIGIN`.
//!
//! ```text
//!   OPTIONS with access-control-request-method ─► 200: any method, the headers that were asked for
//!   any other request                          ─► its answer, which the origin may read
//! ```

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE, OPTIONS");

pub async fn allow(State(origin): State<HeaderValue>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_question =
        request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_question {
        let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or(HeaderValue::from_static("*")));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    response
}
