//! Generates Rust for the messages in `proto/` that no published crate has.

fn main() {
    protobuf_codegen::Codegen::new()
        .pure()
        .include("proto")
        .inputs([
            "proto/runtimeoptions.proto",
            "proto/metric.proto",
            "proto/own.proto",
        ])
        .cargo_out_dir("messages")
        .run_from_script();
    println!("cargo:rerun-if-changed=proto");
}
