//! What `tieline pool set` says of a pool's HSM.

use serde_json::{Value, json};
use std::path::Path;
use tieline_base::report::Usage;
use tieline_types::{Hsm, Span};

/// How a pool's files get to tape and back.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The site's HSM script, by dCache's convention: put, get and remove
    #[arg(long, value_name = "SCRIPT")]
    hsm: Option<String>,
    /// Nothing goes to tape any more; what is there is not brought back
    #[arg(long, conflicts_with = "hsm")]
    no_hsm: bool,
    /// What the HSM is called [default: the script's name]
    #[arg(long, value_name = "NAME", requires = "hsm")]
    hsm_instance: Option<String>,
    /// Scripts that put at once, at one server
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    hsm_puts: u16,
    /// Scripts that get at once
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    hsm_gets: u16,
    /// Scripts that remove at once
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    hsm_removes: u16,
    /// How long a put may run before it is killed
    #[arg(long, value_name = "SPAN", default_value = "4 h")]
    hsm_put_timeout: Span,
    /// How long a get may run
    #[arg(long, value_name = "SPAN", default_value = "4 h")]
    hsm_get_timeout: Span,
    /// How long a removal may run
    #[arg(long, value_name = "SPAN", default_value = "1 h")]
    hsm_remove_timeout: Span,
    /// Before the second try; each further pause is twice as long, up to an hour
    #[arg(long, value_name = "SPAN", default_value = "1 min")]
    hsm_pause: Span,
    /// Tries before a file is given up until somebody asks again; 0: never
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    hsm_tries: u32,
    /// Handed to the script as -KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE", requires = "hsm")]
    hsm_option: Vec<String>,
}

impl Args {
    /// What is to be set: an HSM, none any more, or nothing.
    pub fn wish(self) -> Result<Option<Option<Hsm>>, Usage> {
        let Some(script) = self.hsm else { return Ok(self.no_hsm.then_some(None)) };
        let stem = Path::new(&script).file_stem();
        let name = stem.map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let hsm = Hsm {
            instance: self.hsm_instance.unwrap_or(name),
            puts: self.hsm_puts,
            gets: self.hsm_gets,
            removes: self.hsm_removes,
            put_seconds: seconds(self.hsm_put_timeout),
            get_seconds: seconds(self.hsm_get_timeout),
            remove_seconds: seconds(self.hsm_remove_timeout),
            pause_seconds: seconds(self.hsm_pause),
            tries: self.hsm_tries,
            options: self.hsm_option,
            script,
        };
        hsm.validate().map_err(|error| Usage(error.to_string()))?;
        Ok(Some(Some(hsm)))
    }
}

fn seconds(span: Span) -> u32 {
    u32::try_from(span.0.as_secs()).unwrap_or(u32::MAX)
}

fn span(seconds: u32) -> Span {
    Span(std::time::Duration::from_secs(seconds.into()))
}

pub fn text(hsm: &Hsm) -> String {
    let options: String = hsm.options.iter().map(|option| format!(" -{option}")).collect();
    let tries = match hsm.tries {
        0 => String::new(),
        tries => format!(", {tries} tries"),
    };
    format!(
        "HSM: {} (instance {}){options}, at once {} puts, {} gets, {} removes; at most {}, {}, {}; \
         again after {}{tries}",
        hsm.script,
        hsm.instance,
        hsm.puts,
        hsm.gets,
        hsm.removes,
        span(hsm.put_seconds),
        span(hsm.get_seconds),
        span(hsm.remove_seconds),
        span(hsm.pause_seconds)
    )
}

pub fn json(hsm: &Hsm) -> Value {
    json!({
        "script": hsm.script,
        "instance": hsm.instance,
        "puts": hsm.puts,
        "gets": hsm.gets,
        "removes": hsm.removes,
        "put_seconds": hsm.put_seconds,
        "get_seconds": hsm.get_seconds,
        "remove_seconds": hsm.remove_seconds,
        "pause_seconds": hsm.pause_seconds,
        "tries": hsm.tries,
        "options": hsm.options,
    })
}
