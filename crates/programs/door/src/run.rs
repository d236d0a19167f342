//! The process: it becomes its user, meets the federation, listens, and ends in good order.

use crate::federation::Federation;
use crate::offered::{self, Face};
use crate::settings::{Plan, Settings};
use std::path::Path;
use std::time::Duration;
use tieline_admin::Subject;
use tieline_telemetry::health::Health;
use tieline_world::World;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// For the answers that clients wait for.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// For what servers hold for us.
const LEAVE_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether the map names this door.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// Runs a door until it is told to stop.
pub fn run(settings: &Path, is_json: bool) -> anyhow::Result<()> {
    let plan = Settings::load(settings)?;
    tieline_telemetry::log::start(is_json || plan.is_log_json);
    for doubt in &plan.doubts {
        tracing::warn!("{doubt}");
    }
    tieline_machine::becoming::become_user(plan.user.as_deref())?;
    tieline_machine::descriptors::raise();
    tieline_machine::memory::prepare();
    plan.proving.prepare();
    let runtime = tieline_machine::runtime::of_daemon()?;
    let result = runtime.block_on(serve(plan));
    // Calls that hang in DNS must not keep a process that has nothing left to do.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(plan: Plan) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _hangup = signal(SignalKind::hangup())?;
    let stop = async {
        tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    tokio::pin!(stop);
    let health = Health::default();
    let subject = Subject {
        health: health.clone(),
        role: format!("door of /{}", plan.fs),
        details: Box::new(|| serde_json::Value::Null),
    };
    let admin = tieline_admin::serve(&World::real(), &plan.admin, subject).await?;
    tracing::info!(fs = %plan.fs, door = %plan.principal, admin = %admin.address(), "starting");
    let federation = tokio::select! {
        biased;
        reason = &mut stop => {
            tracing::info!(reason, "stopped before it served");
            return Ok(());
        }
        federation = Federation::meet(&plan) => federation?,
    };
    let faces = offered::open(&plan, &federation).await;
    let faces = match faces {
        Ok(faces) => faces,
        Err(error) => {
            federation.leave(LEAVE_PATIENCE).await;
            return Err(error);
        }
    };
    for face in &faces {
        tracing::info!(protocol = face.protocol(), address = %face.address(), "serving");
    }
    health.set_ready(true);
    let reason = tokio::select! {
        biased;
        reason = stop => reason,
        () = watch(&federation, &plan.principal, &health) => unreachable!("it watches for ever"),
        () = federation.visitors.keep_names() => unreachable!("names are kept for ever"),
    };
    tracing::info!(reason, "stopping");
    health.set_ready(false);
    end(faces).await;
    federation.leave(LEAVE_PATIENCE).await;
    tracing::info!("stopped");
    Ok(())
}

/// Says so while the map does not name this door: it comes and goes with the map.
async fn watch(federation: &Federation, principal: &str, health: &Health) {
    let mut told = None;
    loop {
        let trouble = federation.trouble(principal);
        if trouble != told {
            match &trouble {
                Some(why) => {
                    tracing::warn!("{why}");
                    health.degrade("door", why.as_str());
                }
                None => health.recover("door"),
            }
            told = trouble;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// All of them at once.
async fn end(faces: Vec<Box<dyn Face>>) {
    let mut ends = JoinSet::new();
    for face in faces {
        ends.spawn(async move { (face.protocol(), face.stop(STOP_PATIENCE).await) });
    }
    while let Some(ended) = ends.join_next().await {
        if let Ok((protocol, false)) = ended {
            tracing::warn!(protocol, "clients were cut off before they had their answers");
        }
    }
}
