import AppParts
import Core
import SwiftUI
import UIKit

/// One screen for all: ask a model, measure it, or watch a run that a computer asked for.
struct LegacyScreen: View {
    private static let minutes = 2.0

    @StateObject private var model: LegacyModel
    @Environment(\.scenePhase) private var phase

    init(model: @autoclosure @escaping () -> LegacyModel) { _model = StateObject(wrappedValue: model()) }

    var body: some View {
        NavigationView {
            Form {
                if let run = model.run {
                    Section(header: Text("Benchmark for a computer")) { Text(verbatim: run) }
                } else {
                    asking
                }
                measuring
                if let missing = model.missing { Section { Text(verbatim: Words.missing(missing)).foregroundStyle(.secondary) } }
                if let problem = model.problem { Section { Text(verbatim: problem) } }
            }
            .navigationTitle(Text(verbatim: "PocketBERT"))
        }
        .navigationViewStyle(.stack)
        .onChange(of: phase) { phase in
            // A run that a computer asked for says in its record that the app was behind.
            if phase == .background, model.run == nil { model.leave() }
        }
        .task {
            UIApplication.shared.isIdleTimerDisabled = true
            if let end = await model.start() { exit(end.state == .finished ? 0 : 1) }
        }
    }

    @ViewBuilder private var asking: some View {
        Section(header: Text("Model")) {
            Picker("Model", selection: $model.chosen) {
                ForEach(model.models) { Text(verbatim: "\($0.name) · \(Words.detail($0))").tag($0.id) }
            }
            TextField("Text", text: $model.first)
            if model.takesTwo { TextField("Second text, or the passage", text: $model.second) }
            Button("Ask") { model.ask() }.disabled(model.isMeasuring)
        }
        if let reply = model.reply, let chosen = model.model {
            Section(header: Text("Answer")) {
                Text(verbatim: shown(reply)).font(.title2.weight(.semibold))
                Text(verbatim: Words.caption(reply, warmMs: nil, chosen)).font(.caption).foregroundStyle(.secondary)
            }
        }
    }

    @ViewBuilder private var measuring: some View {
        Section(header: Text("Benchmark")) {
            if let progress = model.progress {
                ProgressView(value: min(max(progress.done, 0), 1)) { Text(verbatim: Words.progress(progress)) }
            }
            if model.run == nil {
                Button(model.isMeasuring ? "Stop" : "Measure") {
                    if model.isMeasuring { model.cancel() } else { model.measure(minutes: Self.minutes) }
                }
            }
            if let record = model.record {
                ForEach(record.lengths) { Text(verbatim: Words.length($0)) }
                row("First run", Formats.ms(record.firstMs))
            }
        }
    }

    private func row(_ name: LocalizedStringKey, _ value: String) -> some View {
        HStack {
            Text(name)
            Spacer(minLength: 12)
            Text(verbatim: value).monospacedDigit()
        }
        .accessibilityElement(children: .combine)
    }

    private func shown(_ reply: Reply) -> String {
        switch reply.answer {
        case .labels(let shares): shares.map { "\(Words.label($0.label)) \(Words.share($0))" }.joined(separator: "\n")
        case .embedding(let embedding): String(localized: "\(embedding.count, specifier: "%lld") numbers")
        default: Words.answer(reply.answer, reply.question)
        }
    }
}
