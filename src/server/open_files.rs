//! How many API connections fit into the files that the system lets this process open.
//!
//! Connections share that limit with the store and the peers. Were it used up by workers, a snapshot could not be written
//! and the node would end; so workers get what is left.

use rustix::process::{Resource, getrlimit};

use super::ServerError;
use super::api::CONNECTIONS_MAX;

/// For everything but API connections: at most 192 of peers and their handshakes, four to each of eight peers, the store's
/// and snapshots' files.
const RESERVED_FILES: u64 = 512;
/// Fewer connections serve nobody well.
const CONNECTIONS_MIN: u64 = 64;

/// How many API connections there may be at once.
///
/// # Errors
/// [`ServerError::OpenFiles`] where the limit is too low for a node.
pub(super) fn connections_max() -> Result<usize, ServerError> {
    within(getrlimit(Resource::Nofile).current)
}

/// Within a limit of open files, or without one.
fn within(limit: Option<u64>) -> Result<usize, ServerError> {
    let Some(found) = limit else {
        return Ok(CONNECTIONS_MAX);
    };
    let needed = RESERVED_FILES + CONNECTIONS_MIN;
    if found < needed {
        return Err(ServerError::OpenFiles { found, needed });
    }
    let left = usize::try_from(found - RESERVED_FILES).unwrap_or(usize::MAX);
    Ok(left.min(CONNECTIONS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_the_files_that_the_rest_leaves() {
        assert_eq!(within(None).unwrap(), CONNECTIONS_MAX);
        assert_eq!(within(Some(1 << 20)).unwrap(), CONNECTIONS_MAX);
        assert_eq!(within(Some(1_024)).unwrap(), 512);
        assert_eq!(within(Some(576)).unwrap(), 64);

        let error = within(Some(575)).unwrap_err();

        assert_eq!(
            error.to_string(),
            "this process may open 575 files at once, and a node needs 576: raise the limit, with ulimit -n or LimitNOFILE"
        );
    }
}
