//! Copies on tape that nobody needs: the HSM is told to remove them, until it has.

use super::{driver, inner};
use crate::Parts;
use crate::error::{Error, Result};
use tieline_format::Record;
use tieline_format::mdt::{TapeRemoval, key};
use tieline_kv::Key;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ErrorKind, FileId, Hsm};
use tieline_wire::tape::{TapeDeed, TapeWork};

/// Removals are never given up; where nothing says how long to wait, so many seconds.
const PAUSE_SECONDS: u32 = 60;

/// Says what to tell operators, if it did not work.
pub async fn remove(parts: &Parts, key: &Key, removal: TapeRemoval) -> Option<String> {
    let file = key::tape_file(key).unwrap_or_default();
    let map = parts.map.current();
    let pool = map.map.pool(&removal.pool).cloned();
    let hsm = pool.as_ref().and_then(|pool| pool.hsm.clone());
    let outcome = match pool.zip(hsm.clone()) {
        Some((pool, hsm)) => ask(parts, file, &pool, hsm, &removal).await,
        None => Err(super::Undone::delay(
            ErrorKind::NotFound,
            format!("pool {} has no HSM any more", removal.pool),
        )),
    };
    match outcome {
        Ok(()) => {
            METRICS.tape_files.with_label_values(&["remove"]).inc();
            tracing::info!(%file, uris = removal.uris.join(" "), "removed from tape");
            match write(parts, key, None).await {
                Ok(()) => None,
                Err(error) => Some(inner(parts, error).failure.detail),
            }
        }
        Err(undone) => {
            let tries = removal.tries + u32::from(!undone.is_delay);
            let pause = hsm.as_ref().map_or(PAUSE_SECONDS, |hsm: &Hsm| hsm.pause(tries.max(1)));
            let detail = undone.failure.detail;
            tracing::warn!(
                %file, tries, uris = removal.uris.join(" "),
                "tape: {detail}; tried again in {pause} s"
            );
            let next_ms = parts.now().millis() + u64::from(pause) * 1000;
            let again = TapeRemoval { tries, next_ms, ..removal };
            // If this is lost, it is tried sooner.
            let _ = write(parts, key, Some(&again)).await;
            Some(format!("removal of {file} from tape: {detail}"))
        }
    }
}

async fn ask(
    parts: &Parts,
    file: FileId,
    pool: &tieline_format::map::Pool,
    hsm: Hsm,
    removal: &TapeRemoval,
) -> Result<(), super::Undone> {
    let ost = driver::choose(parts, pool, None)?;
    let deed = TapeDeed::Remove(removal.uris.clone());
    let storage_info = String::new();
    let work = TapeWork { hsm, storage_info, deed, parts: vec![], before: 0, total: 0 };
    driver::drive(parts, (ost, file), work, vec![]).await.map(drop)
}

async fn write(parts: &Parts, key: &Key, removal: Option<&TapeRemoval>) -> Result<()> {
    let mut transaction = parts.store.begin().await?;
    match removal {
        Some(removal) => transaction.put(key.clone(), removal.to_bytes()),
        None => transaction.delete(key.clone()),
    }
    let committed = transaction.commit().await.map_err(Error::from)?;
    committed.durable.await?;
    Ok(())
}
