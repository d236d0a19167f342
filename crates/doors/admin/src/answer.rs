//! Which path gets what.

use crate::Subject;
use serde::Serialize;
use tieline_http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use tieline_http::server::{Request, Response};
use tieline_http::{Method, StatusCode};
use tieline_telemetry::metrics::METRICS;

const PLAIN: &str = "text/plain; charset=utf-8";
/// As Prometheus' text format names itself.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
const HINT: &str = "not here: try /metrics, /health, /health/live or /health/ready\n";

#[derive(Serialize)]
struct HealthBody<'s> {
    live: bool,
    ready: bool,
    degraded: Vec<Degraded>,
    role: &'s str,
    version: &'static str,
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    details: serde_json::Value,
}

#[derive(Serialize)]
struct Degraded {
    part: String,
    reason: String,
}

pub(crate) fn answer(request: &Request, subject: &Subject) -> Response {
    if request.method != Method::GET {
        return Response::text(StatusCode::METHOD_NOT_ALLOWED, "there is only GET here")
            .with(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    match request.path.encode().as_str() {
        "/metrics" => respond(StatusCode::OK, PROMETHEUS, METRICS.render()),
        "/health" => health(subject),
        // It answers, so it lives.
        "/health/live" => respond(StatusCode::OK, JSON, "{\"live\":true}\n".to_owned()),
        "/health/ready" => {
            let is_ready = subject.health.report().is_ready;
            respond(readiness(is_ready), JSON, format!("{{\"ready\":{is_ready}}}\n"))
        }
        _ => respond(StatusCode::NOT_FOUND, PLAIN, HINT.to_owned()),
    }
}

fn health(subject: &Subject) -> Response {
    let report = subject.health.report();
    let degraded = |(part, reason)| Degraded { part, reason };
    let body = HealthBody {
        live: true,
        ready: report.is_ready,
        degraded: report.troubles.into_iter().map(degraded).collect(),
        role: &subject.role,
        version: env!("CARGO_PKG_VERSION"),
        details: (subject.details)(),
    };
    match serde_json::to_string(&body) {
        Ok(text) => respond(readiness(report.is_ready), JSON, text + "\n"),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}

fn readiness(is_ready: bool) -> StatusCode {
    if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response {
    Response::new(status).with(CONTENT_TYPE, HeaderValue::from_static(kind)).body(body)
}
