package pocketbert.app.runners

import org.pytorch.executorch.EValue
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor
import pocketbert.app.CopiedModels
import pocketbert.core.contract.Function
import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerFailed
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.RunnerRefused
import pocketbert.core.model.Runtime
import pocketbert.core.model.SharedPool
import java.io.IOException
import java.nio.IntBuffer

/**
 * ExecuTorch's modules: methods by name, through XNNPACK, on a file that is mapped from a copy outside of the APK.
 *
 * There is no call here that sets XNNPACK's weight cache; the library for Android is built with it on, so methods that share
 * weights pack them once (`tools/cmake/preset/android.cmake` of v1.4.1: `EXECUTORCH_XNNPACK_ENABLE_WEIGHT_CACHE`).
 */
class ExecuTorch(private val copies: CopiedModels) : Runtime {
    override val name = "ExecuTorch"
    override val version = VERSION
    override val backend = "executorch"

    override fun open(model: Model, options: RunnerOptions): Runner {
        val units = options.computeUnits ?: model.computeUnits.first()
        if (units != "CPU") throw RunnerRefused("ExecuTorch has no compute units $units here; it has CPU")
        val hold = POOL.hold(options.threads)
        return try {
            val file = model.onDisk ?: copies.file(model)
            ExecuTorchRunner(Module.load(file.path, Module.LOAD_MODE_MMAP, options.threads), model, hold)
        } catch (error: Throwable) {
            hold.close()
            throw explained(model, error)
        }
    }

    private fun explained(model: Model, error: Throwable) = when (error) {
        is IOException -> RunnerFailed("${model.file} cannot be copied out of the app: ${error.message}", error)
        is LinkageError -> RunnerFailed("ExecuTorch's library cannot be loaded: ${error.message}", error)
        // Its own exceptions are of several classes, all of them below this one.
        is RuntimeException -> RunnerFailed("ExecuTorch cannot open ${model.file}: ${error.message}", error)
        else -> error
    }

    companion object {
        /** Of the library that the app is built with; it does not tell itself. As in `gradle/libs.versions.toml`. */
        const val VERSION = "1.4.1"

        /**
         * `Module.load` sets the size of the process's pool (`_unsafe_reset_threadpool` in `jni_layer.cpp` of v1.4.1), to which
         * XNNPACK's runtimes point as long as they live (`XNNCompiler.cpp`).
         */
        private val POOL = SharedPool("ExecuTorch")
    }
}

private class ExecuTorchRunner(private val module: Module, private val model: Model, private val hold: SharedPool.Hold) : Runner {
    private class Inputs(val values: Map<String, IntBuffer>, val arguments: Array<EValue>)

    private val inputs = HashMap<Pair<String, Int>, Inputs>()
    override val delegate: String?

    init {
        try {
            val functions = model.signature.functions
            delegate = functions.flatMap { module.getMethodMetadata(it.name).backends.toList() }.distinct().joinToString().ifEmpty { null }
            for (function in functions) {
                // Else the first run loads it, and packs its weights.
                module.loadMethod(function.name)
                if (function.fixed) inputs(function, function.maxLength)
            }
        } catch (error: Throwable) {
            module.close()
            throw error
        }
    }

    /** There is no other unit here: what XNNPACK does not take, ExecuTorch's own kernels compute. */
    override val shareByUnit = mapOf("CPU" to 1.0)
    override val poolThreads get() = hold.threads

    override fun run(row: PaddedRow): Map<String, FloatArray> {
        val inputs = inputs(row.function, row.length)
        for ((name, buffer) in inputs.values) {
            buffer.rewind()
            buffer.put(row.inputs.getValue(name))
        }
        val found = try {
            module.execute(row.function.name, *inputs.arguments)
        } catch (error: RuntimeException) {
            throw RunnerFailed("ExecuTorch cannot run ${row.function.name}: ${error.message}", error)
        }
        val names = row.function.outputs.map { it.name }
        if (found.size != names.size) throw RunnerFailed("${model.file} gave ${found.size} outputs, and has ${names.size}")
        return names.zip(found) { name, value -> name to value.toTensor().dataAsFloatArray }.toMap()
    }

    /** Returns the inputs of a function at a length, made once; without names there, they come in the order of the signature. */
    private fun inputs(function: Function, length: Int) = inputs.getOrPut(function.name to length) {
        val buffers = function.inputs.associate { it.name to Tensor.allocateIntBuffer(length) }
        val shape = longArrayOf(1, length.toLong())
        Inputs(buffers, buffers.values.map { EValue.from(Tensor.fromBlob(it, shape)) }.toTypedArray())
    }

    override fun close() {
        // Where the module cannot be closed, it goes on pointing to the pool.
        module.close()
        hold.close()
    }
}
