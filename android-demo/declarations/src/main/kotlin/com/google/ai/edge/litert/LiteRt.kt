@file:Suppress("UNUSED_PARAMETER", "unused")

package com.google.ai.edge.litert

import java.util.concurrent.atomic.AtomicBoolean

private fun declared(): Nothing = error("LiteRT is not in this build; Gradle's has it")

class LiteRtException(private val status: Status, message: String) : Exception(message) {
    constructor(code: Int, message: String) : this(Status.entries.first { it.code == code }, message)
}

/** Two of many. */
enum class Status(val code: Int) { Ok(0), ErrorCompilation(504) }

enum class Accelerator { NONE, CPU, GPU, NPU }

abstract class JniHandle internal constructor(internal val handle: Long) : AutoCloseable {
    private val destroyed = AtomicBoolean(false)

    /** Every call does so; closing twice does nothing. */
    protected fun assertNotDestroyed() {
        if (destroyed.get()) throw IllegalStateException("The handle has been destroyed.")
    }

    protected abstract fun destroy()

    final override fun close() {
        if (destroyed.compareAndSet(false, true)) destroy()
    }
}

class Environment private constructor(handle: Long) : JniHandle(handle) {
    enum class Option { CompilerPluginLibraryDir, DispatchLibraryDir }

    @Throws(LiteRtException::class)
    fun getAvailableAccelerators(): Set<Accelerator> = declared()

    override fun destroy() = declared()

    companion object {
        @Throws(LiteRtException::class)
        @JvmOverloads
        @JvmStatic
        fun create(options: Map<Option, String> = mapOf()): Environment = declared()
    }
}

class TensorBuffer internal constructor(handle: Long) : JniHandle(handle) {
    @Throws(LiteRtException::class)
    fun writeInt(data: IntArray): Unit = declared()

    @Throws(LiteRtException::class)
    fun readFloat(): FloatArray = declared()

    override fun destroy() = declared()
}

class CompiledModel private constructor(handle: Long) : JniHandle(handle) {
    data class CpuOptions(val numThreads: Int? = null, val xnnPackFlags: Int? = null, val xnnPackWeightCachePath: String? = null)

    class Options(internal val accelerators: Set<Accelerator>) {
        constructor(vararg accelerators: Accelerator) : this(setOf(*accelerators))

        var cpuOptions: CpuOptions? = null

        companion object {
            @JvmStatic
            val CPU = Options(Accelerator.CPU)
        }
    }

    @Throws(LiteRtException::class)
    fun createInputBuffer(inputName: String, signature: String = ""): TensorBuffer = declared()

    @Throws(LiteRtException::class)
    fun createOutputBuffer(outputName: String, signature: String = ""): TensorBuffer = declared()

    @Throws(LiteRtException::class)
    fun run(inputs: Map<String, TensorBuffer>, outputs: Map<String, TensorBuffer>, signature: String = ""): Unit = declared()

    override fun destroy() = declared()

    companion object {
        /** Without an environment, a model makes one of its own. */
        @Throws(LiteRtException::class)
        @JvmOverloads
        @JvmStatic
        fun create(filePath: String, options: Options = Options.CPU, optionalEnv: Environment? = null): CompiledModel = declared()
    }
}
