//! openraft's own tests of a store.

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;

use super::fixture;
use crate::server::store::{LogStore, StateMachine};
use crate::server::types::TypeConfig;

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let (guard, store) = fixture::new_store();
        Ok((guard, store.log, store.machine))
    }
}

#[tokio::test]
async fn the_store_passes_openrafts_suite() {
    Suite::test_all(Builder).await.unwrap();
}
