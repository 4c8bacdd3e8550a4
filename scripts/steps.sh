# shellcheck shell=bash
# The steps a change must pass, shared by scripts/test and scripts/check, which source this file.
#
# Each step prints a header and its time. The first that fails ends the run, and its name is the last line.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
exec </dev/null # nothing here may wait for a terminal

STEP="starting"
PASSED=()
trap 'code=$?; if ((code != 0)); then printf "\nFAILED: %s (after %d s)\n" "$STEP" "$SECONDS" >&2; fi' EXIT

# step NAME COMMAND…: runs the command under a header.
step() {
    STEP=$1
    shift
    local begun=$SECONDS
    printf '\n==> %s: %s\n' "$STEP" "$*"
    "$@"
    PASSED+=("$(printf '%-28s %4d s' "$STEP" "$((SECONDS - begun))")")
}

# Prints what passed; the last thing a script calls.
summary() {
    printf '\n'
    printf '  passed  %s\n' "${PASSED[@]}"
    printf 'All %d steps passed in %d s.\n' "${#PASSED[@]}" "$SECONDS"
}

# Debian's packages for what cargo calls.
install_build_packages() {
    local wanted=()
    command -v cc >/dev/null || wanted+=(build-essential)
    command -v pkg-config >/dev/null || wanted+=(pkg-config)
    install_debian "${wanted[@]}"
}

# Debian's packages for what `highwater chaos` puts between nodes and the system, beside a C compiler.
install_chaos_packages() {
    local wanted=()
    compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || wanted+=(libfaketime)
    install_debian "${wanted[@]}"
}

# Debian's packages for what the tests call.
install_test_packages() {
    install_chaos_packages
    local wanted=()
    command -v strace >/dev/null || wanted+=(strace)
    command -v curl >/dev/null || wanted+=(curl)
    command -v unshare >/dev/null || wanted+=(util-linux)
    command -v mount >/dev/null || wanted+=(mount)
    command -v script >/dev/null || wanted+=(bsdutils)
    # Counters that Highwater takes over from; only the tests start them.
    [[ -x /usr/sbin/mariadbd ]] || wanted+=(mariadb-server-core)
    command -v mariadb >/dev/null || wanted+=(mariadb-client-core)
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || wanted+=(postgresql)
    install_debian "${wanted[@]}"
}

# install_bench_packages WHO,…: what building the benchmark calls, and the systems that it is to measure.
install_bench_packages() {
    local wanted=()
    command -v protoc >/dev/null || wanted+=(protobuf-compiler)
    [[ -d /usr/include/google/protobuf ]] || wanted+=(libprotobuf-dev)
    command -v setpriv >/dev/null || wanted+=(util-linux)
    case ,$1, in *,etcd,*) command -v etcd >/dev/null || wanted+=(etcd-server) ;; esac
    case ,$1, in *,redis,*) command -v redis-server >/dev/null || wanted+=(redis-server) ;; esac
    case ,$1, in *,postgres,*) compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || wanted+=(postgresql) ;; esac
    case ,$1, in *,mariadb,*) [[ -x /usr/sbin/mariadbd ]] || wanted+=(mariadb-server-core) ;; esac
    local peers=bench/target/peers
    local tsoracle=present
    case ,$1, in
    *,tsoracle,*) PATH=$PATH:$PWD/$peers/bin command -v tsoracle >/dev/null || tsoracle=missing ;;
    esac
    if [[ $tsoracle == missing ]]; then
        compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null || wanted+=(libclang-dev clang)
    fi
    install_debian "${wanted[@]}"
    if [[ $tsoracle == missing ]]; then
        cargo install tsoracle --version 2.3.3 --locked --no-default-features --features openraft --root "$peers"
    fi
}

# Servers take their time to be installed, which the checks need not wait for: begun here, ended by test_packages_are_there.
begin_test_packages() {
    INSTALL_LOG=$(mktemp)
    install_test_packages >"$INSTALL_LOG" 2>&1 &
    INSTALLING=$!
}

test_packages_are_there() {
    local code=0
    wait "$INSTALLING" || code=$?
    cat "$INSTALL_LOG"
    rm "$INSTALL_LOG"
    return "$code"
}

# install_debian PACKAGE…: only root can; anybody else is told the command.
install_debian() {
    if (($# == 0)); then
        return
    fi
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        echo "missing on this machine: $*; install with: sudo apt-get install $*" >&2
        return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -y -q --no-install-recommends ca-certificates "$@"
}

# Built with little optimisation: it only starts the tests, and this halves the minutes its build takes.
install_nextest() {
    cargo nextest --version >/dev/null 2>&1 ||
        CARGO_PROFILE_RELEASE_OPT_LEVEL=1 cargo install cargo-nextest --locked
}

require_rust() {
    command -v cargo >/dev/null ||
        { echo "cargo is missing: install Rust from https://rustup.rs" >&2 && return 1; }
    local component
    for component in fmt clippy; do
        cargo "$component" --version >/dev/null 2>&1 ||
            { echo "cargo $component is missing: rustup component add rustfmt clippy" >&2 && return 1; }
    done
}

check_docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
}

# The worker library stands alone: whoever embeds it must not build Raft, the store or the HTTP server.
check_client_tree() {
    local tree found
    tree=$(cargo tree --locked --no-default-features --edges normal,build --prefix none --format '{p}')
    if found=$(grep -E '^(openraft|sled|axum) ' <<<"$tree"); then
        printf 'without default features the crate still depends on:\n%s\n' "$found" >&2
        return 1
    fi
}

check_shell() {
    if ! command -v shellcheck >/dev/null; then
        echo "skipped: shellcheck is not installed"
        return
    fi
    shellcheck --external-sources scripts/* .ci/run
}

# What needs no test run. It writes nothing but cargo's target directory.
checks() {
    step "format" cargo fmt --all --check
    step "format, benchmark" cargo fmt --manifest-path bench/Cargo.toml --check
    step "shell" check_shell
    step "clippy" cargo clippy --locked --all-targets -- -D warnings
    step "clippy, client only" cargo clippy --locked --no-default-features -- -D warnings
    step "build, client only" cargo check --locked --no-default-features
    step "dependencies, client only" check_client_tree
    step "docs" check_docs
    step "layers" cargo test --locked --quiet --test layers
}
